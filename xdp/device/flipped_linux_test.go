package device_test

import (
	"maps"
	"os"
	"slices"
	"testing"

	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/shmtest/flip"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/testdata"
	"github.com/shmring/shmring/xdp/device"
)

const envScene = "SHMRING_TEST_SCENE"

func init() {
	roles["flip"] = func() { flip.Play(device.FlipScenes()[os.Getenv(envScene)]) }
}

// TestFlip changes every word of a command between any two loads that the device process makes of
// it, as cq.TestFlip does with entries.
func TestFlip(t *testing.T) {
	names := slices.Sorted(maps.Keys(device.FlipScenes()))
	if err := testdata.CheckFrozen(testdata.FrozenDeviceFlip, names); err != nil {
		t.Error(err)
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			shmtest.Require(t, "children", flip.Possible())
			dir, err := os.MkdirTemp(os.Getenv(shm.EnvDir), "flip") // the child is killed in the end
			must(t, err)
			t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
			s := flip.Attack(t, shmtest.Child(t, "flip", envScene+"="+name, shm.EnvDir+"="+dir,
				"GORACE=atexit_sleep_ms=0"), flip.Options{})
			t.Log(&s)
			if s.Loaded == 0 && !t.Failed() {
				t.Error("the call looks at none of the words")
			}
		})
	}
}
