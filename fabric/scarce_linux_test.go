package fabric_test

import (
	"errors"
	"testing"
	"time"

	"github.com/shmring/shmring/fabric"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/wake"
)

// onePlace is for an endpoint that sends to one peer at once.
var onePlace = fabric.Options{Peers: 1}

// TestPlaceSought: who has no place for one more peer looks who has gone before it says so.
func TestPlaceSought(t *testing.T) {
	a := opened(t, "a", onePlace)
	for range 3 {
		b := opened(t, "b", fabric.Options{})
		noError(t, a.Inject(nil, a.knows(t, "b")))
		noError(t, b.close())
	}
}

// TestCutOffDies: who was cut off, or has refused us, keeps its place of our outbox and what it may
// read until its process has ended, and no longer, whether it closes before or not.
func TestCutOffDies(t *testing.T) {
	refuses := func(of scribbled) { of.rows[0].Owner.Store(of.claims[0].Load() | kind.FabricRefused) }
	lies := func(of scribbled) {
		of.rows[0].Owner.Store(of.claims[0].Load())
		of.rows[0].Head.Store(1 << 40)
	}
	for name, c := range map[string]struct {
		writes       func(of scribbled)
		closes, dead bool
	}{
		"refuses and dies":   {writes: refuses},
		"lies and dies":      {writes: lies},
		"refuses and closes": {writes: refuses, closes: true},
		"is dead":            {writes: lies, dead: true},
	} {
		t.Run(name, func(t *testing.T) {
			e, p := opened(t, "main", onePlace), started(t, "idle")
			to := e.knows(t, "idle")
			if c.closes {
				p.obeys(t, "send", "0")
				e.steps(t)
			}
			noError(t, e.Send(pattern(680), to, 1))
			of := scribble(t, e, "idle")
			if c.dead {
				p.kill(t)
				for !noted(e.Bell()) {
					time.Sleep(time.Millisecond)
				}
			}
			c.writes(of)
			of.rows[0].Rev.Add(1)
			e.steps(t)
			if _, failed, err := e.next(); err != nil || failed.Err == 0 {
				t.Errorf("%+v, %v", failed, err)
			}
			if !c.dead {
				account(t, e, 8, 0, 1)
				opened(t, "b", fabric.Options{})
				if err := e.Inject(nil, e.knows(t, "b")); !errors.Is(err, fabric.ErrPeers) {
					t.Errorf("the place of one that lives: %v", err)
				}
			}
			switch {
			case c.closes:
				p.obeys(t, "close", "0")
				e.steps(t)
				p.ends(t)
			case !c.dead:
				p.kill(t)
			}
			opened(t, "c", fabric.Options{})
			err := fabric.ErrPeers
			for i := 0; errors.Is(err, fabric.ErrPeers) && i < 1000; i++ {
				time.Sleep(time.Millisecond)
				err = e.Inject(nil, e.knows(t, "c"))
			}
			noError(t, err)
			account(t, e, 8, 0, 0)
		})
	}
}

// noted reports whether a bell has marks.
func noted(b *wake.Bell) bool {
	b.Lock()
	defer b.Unlock()
	return b.Pending()
}
