//go:build shmring_steps

package fabric_test

import (
	"syscall"
	"testing"

	"github.com/shmring/shmring/cq"
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
