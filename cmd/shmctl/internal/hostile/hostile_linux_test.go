package hostile

import (
	"errors"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/stage"
)

func TestMain(m *testing.M) {
	if ok, code := stage.Enter(os.Args[1:], Tool); ok {
		os.Exit(code)
	}
	shmtest.Main(m)
}

// TestFindsWhatIsBroken has victims do what a broken library would, and expects the count that it
// belongs to.
func TestFindsWhatIsBroken(t *testing.T) {
	shmtest.Conforms(t)
	shmtest.RequireRoot(t, "root", "only root starts processes of other users")
	for spoil, found := range map[string]func(v *Violations) uint64{
		spoilPanic: func(v *Violations) uint64 { return v.Panics },
		spoilWild:  func(v *Violations) uint64 { return v.Wild },
		spoilLose:  func(v *Violations) uint64 { return v.BystanderLost },
		spoilHang:  func(v *Violations) uint64 { return v.Hangs },
		spoilError: func(v *Violations) uint64 { return v.Untyped },
		spoilLeak:  func(v *Violations) uint64 { return v.Leaked },
		spoilSteps: func(v *Violations) uint64 { return v.Unbounded },
		spoilBusy:  func(v *Violations) uint64 { return v.Unbounded },
		spoilFail:  func(v *Violations) uint64 { return v.Failed },
		spoilTame:  func(v *Violations) uint64 { return v.Toothless },
		spoilShut:  func(v *Violations) uint64 { return v.KeptOut },
	} {
		for name, only := range map[string]string{"lane": spoil, "counter": spoilLeak,
			"endpoint-met": spoilTame} { // victims that may keep something, or are not let alone
			if spoil != only {
				continue
			}
			if testing.Short() && spoil != spoilLeak && spoil != spoilWild {
				continue // a sample
			}
			t.Run(spoil+" "+name, func(t *testing.T) {
				t.Parallel()
				r, err := Run(t.Context(), Options{Mutations: 5_000, Seed: 2, spoil: spoil,
					Surfaces: []string{name}})
				if !errors.Is(err, ErrViolation) || found(&r.Violations) == 0 || len(r.Notes) == 0 {
					t.Errorf("%v; report %+v", err, r)
				}
			})
		}
	}
}

// TestHostilePeers attacks every surface for a moment. The long form is "shmctl torture hostile".
func TestHostilePeers(t *testing.T) {
	shmtest.Conforms(t)
	shmtest.Long(t)
	shmtest.RequireRoot(t, "root", "only root starts processes of other users")
	o := Options{Mutations: 50_000, Seed: 1}
	if names := os.Getenv("HOSTILE_SURFACES"); names != "" {
		o.Surfaces = strings.Split(names, ",")
	}
	r, err := Run(t.Context(), o)
	if r == nil {
		t.Fatal(err)
	}
	if err != nil {
		t.Error(err)
	}
	r.Sheet().Print(t.Output())
	for _, s := range r.Skipped {
		shmtest.Require(t, "netns", errors.New(s))
	}
	if r.Mutations < o.Mutations {
		t.Errorf("only %d mutations", r.Mutations)
	}
}

// TestBreaches: each kind of violation is counted, and told under a name of its own.
func TestBreaches(t *testing.T) {
	var v Violations
	fields := reflect.ValueOf(&v).Elem()
	counts, texts := stage.CountsOf(&v), map[string]bool{}
	for i, c := range counts {
		fields.Field(i).SetUint(1 << i)
		if texts[c.Text] = true; *c.N != 1<<i || c.Key == "" {
			t.Errorf("%s is not field %d", c.Text, i)
		}
	}
	if len(counts) != fields.NumField() || len(texts) != len(counts) {
		t.Errorf("%d of %d fields are counted: %v", len(counts), fields.NumField(), texts)
	}
	r := Report{Mutations: 3}
	stage.Add(&r, &Surface{Brought: Brought{Mutations: 4, Attaches: 9}, Violations: v})
	if r.Violations != v || r.Mutations != 7 || r.Good() {
		t.Errorf("added up %+v", r)
	}
	for text, is := range map[string]time.Duration{"1m0s": patience, "20s": keptBound} {
		if is.String() != text {
			t.Errorf("a name says %s, and it is %v", text, is)
		}
	}
}
