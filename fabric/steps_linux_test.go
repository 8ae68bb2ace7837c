//go:build shmring_steps

package fabric_test

import (
	"fmt"
	"syscall"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/ctl"
	"github.com/shmring/shmring/fabric"
	"github.com/shmring/shmring/internal/crash"
)

// TestExposedStep: whether a sender lives is asked after its memory was read. One that is killed
// between the two is not believed.
func TestExposedStep(t *testing.T) {
	e, c, _ := besideExposer(t)
	crash.Passing(crash.FabricCopied, 1, func() { c.kill(t) })
	noError(t, e.Recv(make([]byte, exposed), 2))
	if f := fails(t, e); f.Context != 2 || f.Err != cq.Errno(syscall.ECONNRESET) {
		t.Errorf("%+v", f)
	}
	if c.ProcessState == nil {
		t.Error("its memory was not read")
	}
	nothingLeft(t, e, "main")
}

// TestClaimantStep: a collector leaves nothing of a sender that is killed while it begins a lane,
// though its receiver lives and does not look.
func TestClaimantStep(t *testing.T) {
	for _, at := range []crash.Label{crash.FabricLaneFilled, crash.FabricLaneNamed,
		crash.FabricClaimed} {
		t.Run(at.String(), func(t *testing.T) {
			e := opened(t, "main", fabric.Options{})
			_ = start(t, "burst", fmt.Sprintf("%s=%v", crash.Env, at)).Wait()
			_, err := ctl.Collect(e.d, ctl.CollectOptions{Remove: true})
			noError(t, err)
			if all, err := e.d.List(); err != nil || len(all) != 2 {
				t.Errorf("left are %v, %v", all, err)
			}
		})
	}
}
