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
	rest  func(s *Sleep) error
	n     int
}

func (d *device) Round(int64) (int, error) { d.n++; return d.round(d.n) }

func (d *device) Rest(_ int64, s *Sleep) error { return d.rest(s) }

// TestLoop: a loop works while there is work, and ends by its context, by an error of either kind,
// and by a round that wants it.
func TestLoop(t *testing.T) {
	wrong := errors.New("wrong")
	until := func(last int, err error) func(int) (int, error) {
		return func(n int) (int, error) {
			if n == last {
				return 1, err
			}
			return 1, nil
		}
	}
	idle := func(int) (int, error) { return 0, nil }
	for name, c := range map[string]struct {
		round  func(n int) (int, error)
		rest   error
		rounds int
		want   error
	}{
		"round":   {until(5, wrong), nil, 5, wrong},
		"rest":    {idle, wrong, 1, wrong},
		"stopped": {until(7, ErrStopped), nil, 7, nil},
	} {
		d := &device{round: c.round, rest: func(*Sleep) error { return c.rest }}
		if err := new(Loop).Run(t.Context(), 0, d); !errors.Is(err, c.want) || d.n != c.rounds {
			t.Errorf("%s: %v after %d rounds", name, err, d.n)
		}
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
		}, rest: func(s *Sleep) error { c.rest(s); asleep <- struct{}{}; return nil }}
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

// TestFree: numbers come back as they were given, the last one first.
func TestFree(t *testing.T) {
	f := NewFree(3)
	for want := range uint32(3) {
		if i, ok := f.Take(); !ok || i != want {
			t.Errorf("took %d, %v", i, ok)
		}
	}
	if i, ok := f.Take(); ok {
		t.Errorf("took %d of nothing", i)
	}
	f.Give(1)
	f.Give(0)
	if i, _ := f.Take(); i != 0 || len(f) != 1 {
		t.Errorf("took %d, %d are left", i, len(f))
	}
}
