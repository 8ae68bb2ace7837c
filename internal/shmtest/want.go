package shmtest

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"testing"
	"time"
)

// Must ends the test with an error that may not be.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// WantErr checks that err is every one of targets.
func WantErr(t testing.TB, what string, err error, targets ...error) {
	t.Helper()
	for _, target := range targets {
		if !errors.Is(err, target) {
			t.Errorf("%s: %v, want %v", what, err, target)
		}
	}
}

// hang is how long nothing takes that is not broken.
const hang = time.Minute

// Eventually waits until what others do by themselves has been done.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	const longest = 5 * time.Millisecond
	pause, late := 50*time.Microsecond, time.Now().Add(hang)
	for ; !ok(); time.Sleep(pause) {
		if time.Now().After(late) {
			t.Fatal("never: ", what)
		}
		pause = min(2*pause, longest)
	}
}

// Opening is what was opened for a test, or why it could not be.
type Opening[C io.Closer] struct{ Result[C] }

// Have takes what a call that opens something returned.
func Have[C io.Closer](c C, err error) Opening[C] { return Opening[C]{Got(c, err)} }

// In returns what is open. It fails the test if nothing is. When the test ends it closes it, unless
// that is done.
func (o Opening[C]) In(t testing.TB) C {
	t.Helper()
	c := o.Or(t)
	t.Cleanup(func() {
		if err := c.Close(); err != nil && !errors.Is(err, net.ErrClosed) &&
			!errors.Is(err, os.ErrClosed) {
			t.Errorf("close %T: %v", c, err)
		}
	})
	return c
}

// Where is In of what needs a feature of the machine, see [Require].
func (o Opening[C]) Where(t testing.TB, feature string) C {
	t.Helper()
	Require(t, feature, o.err)
	return o.In(t)
}

// Result is what a call returned that may fail.
type Result[T any] struct {
	v   T
	err error
}

// Got takes it.
func Got[T any](v T, err error) Result[T] { return Result[T]{v, err} }

// Or returns it, or ends the test with the error.
func (r Result[T]) Or(t testing.TB) T {
	t.Helper()
	Must(t, r.err)
	return r.v
}

// Watchdog ends the process, with what dump and all goroutines say, if the test does not end in two
// minutes: that is a hang, not a slow machine.
func Watchdog(t testing.TB, dump func() string) {
	t.Helper()
	name := t.Name()
	w := time.AfterFunc(2*time.Minute, func() {
		buf := make([]byte, 1<<16)
		buf = buf[:runtime.Stack(buf, true)]
		fmt.Fprintf(os.Stderr, "%s hangs: %s\n%s\n", name, dump(), buf)
		os.Exit(3)
	})
	t.Cleanup(func() { w.Stop() })
}
