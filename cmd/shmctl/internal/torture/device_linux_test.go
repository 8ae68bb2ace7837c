package torture

import (
	"testing"
	"time"

	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/veth"
	"github.com/shmring/shmring/xdp"
)

// TestDeviceNothingIsLost: a device process and applications of other users, killed at any moment.
func TestDeviceNothingIsLost(t *testing.T) {
	shmtest.Conforms(t)
	shmtest.Long(t)
	pair, err := veth.Open(veth.Config{})
	shmtest.Require(t, "netns", err)
	defer pair.Close()
	shmtest.Require(t, "xdp", pair.B.Do(func() error {
		p, err := xdp.Attach(pair.B.Name, xdp.ProgramOptions{})
		if err == nil {
			err = p.Close()
		}
		return err
	}))
	r, err := Run(t.Context(), Options{Kills: 60, Duration: time.Minute, Seed: 1, Steps: crash.On,
		Roles: []string{"device"}})
	if err != nil {
		t.Fatalf("%v; report %+v", err, r)
	}
	if r.Published == 0 || r.Read == 0 || r.Roles["device"].Kills == 0 {
		t.Errorf("not much of a torture: %+v", r)
	}
}
