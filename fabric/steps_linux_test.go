//go:build shmring_steps

package fabric_test

import (
	"fmt"
	"testing"

	"github.com/shmring/shmring/ctl"
	"github.com/shmring/shmring/fabric"
	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/shmtest"
)

// TestClaimantStep: a collector leaves nothing of a sender that is killed while it begins a lane,
// though its receiver lives and does not look.
func TestClaimantStep(t *testing.T) {
	for _, at := range []crash.Label{crash.FabricLaneFilled, crash.FabricLaneNamed,
		crash.FabricClaimed} {
		t.Run(at.String(), func(t *testing.T) {
			e := opened(t, "main", fabric.Options{})
			_ = start(t, "burst", fmt.Sprintf("%s=%v", crash.Env, at)).Wait()
			shmtest.Got(ctl.Collect(e.d, ctl.CollectOptions{Remove: true})).Or(t)
			if all, err := e.d.List(); err != nil || len(all) != 2 {
				t.Errorf("left are %v, %v", all, err)
			}
		})
	}
}
