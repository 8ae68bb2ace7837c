package flip

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/testdata"
)

const envScene = "SHMRING_TEST_SCENE"

// Scenes are the calls of a package that are attacked, by their names.
type Scenes map[string]func() (Scene, error)

// Play is the role "flip" of a child process.
func (s Scenes) Play() {
	scene, err := s[os.Getenv(envScene)]()
	if err != nil {
		fmt.Fprintln(os.Stderr, "child:", err)
		os.Exit(3)
	}
	Play(scene)
}

// oneBlind is of how many scenes one is attacked, others each time, where nothing tells of loads:
// to flip words between all instructions takes long.
const oneBlind = 10

// Attack attacks each scene in a test of its own; its options are false if it is left out. The
// names are frozen ones of a kind.
func (s Scenes) Attack(t *testing.T, frozen string,
	options func(i int, name string) (Options, bool)) {
	names := slices.Sorted(maps.Keys(s))
	if err := testdata.CheckFrozen(frozen, names); err != nil {
		t.Error(err)
	}
	var played []string
	how := map[string]Options{}
	for i, name := range names {
		if o, ok := options(i, name); ok {
			played, how[name] = append(played, name), o
		}
	}
	first, blind := rand.IntN(max(len(played), 1)), false
	for i := range played {
		name := played[(first+i)%len(played)]
		o := how[name]
		if blind && i%oneBlind != 0 && o.Values != AllValues {
			continue
		}
		t.Run(name, func(t *testing.T) {
			shmtest.Require(t, "children", Possible())
			// What has a name outlives the child, which is killed in the end.
			dir, err := os.MkdirTemp(os.Getenv(shm.EnvDir), "flip")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := os.RemoveAll(dir); err != nil {
					t.Error(err)
				}
			})
			s := Attack(t, shmtest.Child(t, "flip", envScene+"="+name, shm.EnvDir+"="+dir), o)
			t.Log(&s)
			blind = s.Blind
			if s.Loaded == 0 && !t.Failed() {
				t.Error("the call looks at none of the words")
			}
		})
	}
}
