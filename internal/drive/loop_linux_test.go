package drive

import (
	"context"
	"errors"
	"testing"
	"time"
)

// device is driven by functions.
type device struct {
	round func(n int) (int, error)
	rest  func(s *Sleep)
	n     int
}

func (d *device) Round(int64) (int, error) { d.n++; return d.round(d.n) }

func (d *device) Rest(_ int64, s *Sleep) { d.rest(s) }

// TestLoop: a loop works while there is work, and ends by an error of a round.
func TestLoop(t *testing.T) {
	wrong := errors.New("wrong")
	d := &device{round: func(n int) (int, error) {
		if n == 5 {
			return 1, wrong
		}
		return 1, nil
	}}
	if err := new(Loop).Run(t.Context(), 0, d); !errors.Is(err, wrong) || d.n != 5 {
		t.Errorf("%v after %d rounds", err, d.n)
	}
}

// TestSleepEnds: a sleep without an end of its own ends by Wake, and by the context; one that has
// to be brief, and one that is over, by themselves.
func TestSleepEnds(t *testing.T) {
	for name, c := range map[string]struct {
		rest func(s *Sleep)
		wake bool
	}{
		"wake":    {func(*Sleep) {}, true},
		"briefly": {func(s *Sleep) { s.Briefly() }, false},
		"at most": {func(s *Sleep) { s.AtMost(-1) }, false},
		"not":     {func(s *Sleep) { s.Not() }, false},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		var l Loop
		asleep := make(chan struct{}, 100)
		d := &device{round: func(n int) (int, error) {
			if n == 20 {
				cancel()
			}
			return 0, nil
		}, rest: func(s *Sleep) { c.rest(s); asleep <- struct{}{} }}
		if c.wake {
			go func() {
				for range asleep {
					l.Wake()
				}
			}()
		}
		begin := time.Now()
		if err := l.Run(ctx, 0, d); err != nil || d.n < 20 {
			t.Errorf("%s: %v after %d rounds in %v", name, err, d.n, time.Since(begin))
		}
		close(asleep)
		l.Wake() // of a loop that has ended
	}
}
