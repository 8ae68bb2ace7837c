package hostile

import (
	"os"
	"strings"
	"testing"

	"github.com/shmring/shmring/shm/shmtest"
)

func TestMain(m *testing.M) {
	if ok, code := Child(os.Args[1:]); ok {
		os.Exit(code)
	}
	shmtest.Main(m)
}

// TestHostilePeers attacks every surface for a moment. The long form is "shmctl torture hostile".
func TestHostilePeers(t *testing.T) {
	var err error
	if os.Geteuid() != 0 {
		err = os.ErrPermission
	}
	shmtest.Require(t, "root", err)
	o := Options{Mutations: 150_000, Seed: 1}
	if names := os.Getenv("HOSTILE_SURFACES"); names != "" {
		o.Surfaces = strings.Split(names, ",")
	}
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Errorf("%v", err)
	}
	if r == nil {
		return
	}
	r.Print(t.Output())
	if r.Mutations < o.Mutations {
		t.Errorf("only %d mutations", r.Mutations)
	}
}
