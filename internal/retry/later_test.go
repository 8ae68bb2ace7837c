package retry

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// TestLater: tries come at pauses that double while something is wanted, by the try itself or by
// somebody a little later. After that nothing runs, and what is wanted anew does not wait longer.
func TestLater(t *testing.T) {
	t.Parallel()
	for name, wants := range map[string]func(l *Later){
		"by itself": (*Later).Want,
		"by others": func(l *Later) { time.AfterFunc(time.Millisecond, l.Want) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var pauses []time.Duration
				var want []time.Duration
				l := &Later{First: 10 * time.Millisecond, Most: 50 * time.Millisecond}
				l.Try = func(pause time.Duration) {
					if pauses = append(pauses, pause/time.Millisecond); len(pauses) < len(want) {
						wants(l)
					}
				}
				for _, want = range [][]time.Duration{{10, 20, 40, 50, 50}, {10, 20}} {
					pauses = nil
					for range 3 { // one try for all
						l.Want()
					}
					time.Sleep(time.Minute)
					synctest.Wait()
					if !slices.Equal(pauses, want) {
						t.Errorf("pauses of %v ms, want %v", pauses, want)
					}
				}
				if l.Close() {
					t.Error("what was done is wanted")
				}
			})
		})
	}
}

// TestLaterOnce: what is wanted while a try runs has one more, after it.
func TestLaterOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		running, tries := 0, 0
		l := &Later{}
		l.Try = func(time.Duration) {
			if running++; running > 1 {
				t.Error("two tries at once")
			}
			if tries++; tries == 1 {
				time.AfterFunc(time.Second, l.Want)
			}
			time.Sleep(time.Minute)
			running--
		}
		l.Want()
		time.Sleep(time.Hour)
		l.Close()
		if tries != 2 {
			t.Errorf("%d tries, want 2", tries)
		}
	})
}

// TestLaterClose: whoever closes waits for a try that runs, learns what is wanted still, and ends
// all further ones.
func TestLaterClose(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name         string
		wants, again bool          // anything; once more in the try
		at           time.Duration // of Close
		tries        int
		wanted       bool
	}{
		{"nothing wanted", false, false, 0, 0, false},
		{"a try is due", true, false, 0, 0, true},
		{"a try runs", true, false, First + time.Millisecond, 1, false},
		{"a try runs that fails", true, true, First + time.Millisecond, 1, true},
		{"all is done", true, false, time.Minute, 1, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				tries, ended := 0, 0
				l := &Later{}
				l.Try = func(time.Duration) {
					tries++
					time.Sleep(time.Second)
					if c.again {
						l.Want()
					}
					ended++
				}
				if c.wants {
					l.Want()
				}
				time.Sleep(c.at)
				for range 2 {
					if wanted := l.Close(); wanted != c.wanted || tries != c.tries || ended != tries {
						t.Errorf("wanted %v, %d tries and %d ended, want %v, %d", wanted, tries, ended,
							c.wanted, c.tries)
					}
				}
				l.Want()
				time.Sleep(time.Hour)
				if tries != c.tries {
					t.Error("a try comes after Close")
				}
			})
		})
	}
}
