package shm

import (
	"errors"
	"os"
	"syscall"
	"testing"
)

// sharedObject makes an object that belongs to nobody, as one for many processes does.
func sharedObject(t *testing.T, d *Dir, name string) *Object {
	t.Helper()
	o, err := d.Create(name, specFor(""), nil)
	if err != nil {
		t.Fatal(err)
	}
	forget(t, d, name)
	t.Cleanup(func() { o.Close() })
	if _, err := o.TakeSeat(2); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("a seat beside the owner: %v", err)
	}
	if err := o.Release(); err != nil {
		t.Fatal(err)
	}
	return o
}

func takeSeat(t *testing.T, o *Object, n, want int) *Seat {
	t.Helper()
	s, err := o.TakeSeat(n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Leave)
	if s.Index() != want {
		t.Fatalf("seat %d, want %d", s.Index(), want)
	}
	return s
}

func wantTaken(t *testing.T, what string, want bool, ask func() (bool, error)) {
	t.Helper()
	if got, err := ask(); got != want || err != nil {
		t.Errorf("%s: %v, %v; want %v", what, got, err, want)
	}
}

func TestSeats(t *testing.T) {
	d := openTestDir(t)
	o := sharedObject(t, d, "a")
	again := openObject(t, d, "a", ReadWrite)
	first, second := takeSeat(t, o, 2, 0), takeSeat(t, openObject(t, d, "a", ReadOnly), 2, 1)
	seated := func(i int) func() (bool, error) {
		return func() (bool, error) { return again.Seated(i) }
	}
	standing := func() (bool, error) { return again.Standing(2) }
	wantTaken(t, "first", true, seated(0))
	wantTaken(t, "standing", false, standing)
	third := takeSeat(t, again, 2, -1)
	wantTaken(t, "standing", true, standing)

	var busy *BusyError
	for _, s := range []*Seat{first, second, third} {
		if err := again.Claim(nil); !errors.As(err, &busy) {
			t.Errorf("claimed beside a seat: %v", err)
		}
		s.Leave()
		s.Leave()
	}
	wantTaken(t, "first", false, seated(0))
	wantTaken(t, "standing", false, standing)
	takeSeat(t, o, 2, 0).Leave()
	if err := again.Claim(nil); err != nil {
		t.Fatal(err)
	}
	if _, err := o.TakeSeat(2); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("a seat while it is removed: %v", err)
	}
}

// TestSeatGoesWithItsHolder: the kernel frees the seat of one that was killed, and no other.
func TestSeatGoesWithItsHolder(t *testing.T) {
	d := openTestDir(t)
	o := sharedObject(t, d, "a")
	mine := takeSeat(t, o, 8, 0)
	c := startChild(t, "sitter", envObject+"=a")
	if got := c.line(t); got != "seat 1" {
		t.Fatal(got)
	}
	wantTaken(t, "the child's", true, func() (bool, error) { return o.Seated(1) })
	c.kill()
	wantTaken(t, "a dead child's", false, func() (bool, error) { return o.Seated(1) })
	wantTaken(t, "ours", true, func() (bool, error) { return o.Seated(0) })
	mine.Leave()
	wantLife(t, o, Released)
}

func childSitter() {
	o, err := childDir().Open(os.Getenv(envObject), ReadOnly)
	must(err)
	s, err := o.TakeSeat(8)
	must(err)
	say("seat %d", s.Index())
	childSleep()
}

func TestSeatMisuse(t *testing.T) {
	d := openTestDir(t)
	o := sharedObject(t, d, "a")
	for _, n := range []int{0, -1, maxSeats + 1} {
		if _, err := o.TakeSeat(n); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%d seats: %v", n, err)
		}
	}
	if _, err := openObject(t, d, "a", Inspect).TakeSeat(1); !errors.Is(err, syscall.EACCES) {
		t.Errorf("an inspector takes a seat: %v", err)
	}
	o.Close()
	if _, err := o.TakeSeat(1); !errors.Is(err, os.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	if _, err := o.Seated(0); !errors.Is(err, os.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}
