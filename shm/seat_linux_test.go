package shm

import (
	"errors"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
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
	if _, err := seatsOf(t, o, 2).Take(); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("a seat beside the owner: %v", err)
	}
	if err := o.Release(); err != nil {
		t.Fatal(err)
	}
	return o
}

// seatsOf are n seats at an object, with their records in its memory.
func seatsOf(t *testing.T, o *Object, n int) Seats {
	t.Helper()
	w, err := o.Window(secData, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return o.Seats(w.Bytes()[:n*SeatBytes])
}

func takeSeat(t *testing.T, o *Object, n, want int) *Seat {
	t.Helper()
	s, err := seatsOf(t, o, n).Take()
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

// seated asks whether a process that lives has a seat.
func seated(s Seats, i int) func() (bool, error) {
	return func() (bool, error) {
		life, err := s.At(i).Life()
		return life == Alive, err
	}
}

func TestSeats(t *testing.T) {
	d := openTestDir(t)
	o := sharedObject(t, d, "a")
	again := openObject(t, d, "a", ReadWrite)
	first, second := takeSeat(t, o, 2, 0), takeSeat(t, openObject(t, d, "a", ReadOnly), 2, 1)
	seats := seatsOf(t, again, 2)
	seated := func(i int) func() (bool, error) { return seated(seats, i) }
	standing := seats.Standing
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
	if _, err := seatsOf(t, o, 2).Take(); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("a seat while it is removed: %v", err)
	}
}

// TestSeatGoesWithItsHolder: the kernel frees the seat of one that was killed, and no other.
func TestSeatGoesWithItsHolder(t *testing.T) {
	d := openTestDir(t)
	o := sharedObject(t, d, "a")
	mine, seats := takeSeat(t, o, 8, 0), seatsOf(t, o, 8)
	c := startChild(t, "sitter", envObject+"=a")
	if got := c.line(t); got != "seat 1" {
		t.Fatal(got)
	}
	wantTaken(t, "the child's", true, seated(seats, 1))
	if who := seats.At(1).Owner(); who.PID != c.Process.Pid || who.State != StateOwned {
		t.Errorf("the child's seat is that of %+v", who)
	}
	c.kill()
	wantTaken(t, "a dead child's", false, seated(seats, 1))
	wantTaken(t, "ours", true, seated(seats, 0))
	if who, died, err := seats.At(1).OwnerDied(); err != nil || !died || who.PID != c.Process.Pid {
		t.Errorf("dead: %+v, %v, %v", who, died, err)
	}
	next := takeSeat(t, o, 8, 1)
	if d := next.Deaths(); len(d) != 1 || d[0].PID != c.Process.Pid || d[0].Count != 1 ||
		d[0].Generation != 1 || next.Owner().Generation != 2 {
		t.Errorf("recorded %+v, and then %+v", d, next.Owner())
	}
	next.Leave()
	if who := next.Owner(); who.State != StateReleased || who.Generation != 2 {
		t.Errorf("left: %+v", who)
	}
	mine.Leave()
	wantLife(t, o, Released)
}

func childSitter() {
	o, err := childDir().Open(os.Getenv(envObject), ReadOnly)
	must(err)
	w, err := o.Window(secData, 0)
	must(err)
	s, err := o.Seats(w.Bytes()[:8*SeatBytes]).Take()
	must(err)
	say("seat %d", s.Index())
	if n, _ := os.Stdin.Read(make([]byte, 1)); n == 1 {
		sysClose(s.fd) // as a stray close in the program does
		say("lost")
	}
	childSleep()
}

// TestSeatLost: a seat whose lock was lost is nobody else's while its holder lives, unless that is
// another program by now.
func TestSeatLost(t *testing.T) {
	d := openTestDir(t)
	o := sharedObject(t, d, "a")
	seats := seatsOf(t, o, 8)
	c := startChild(t, "sitter", envObject+"=a")
	c.line(t)
	if _, err := c.in.Write([]byte{1}); err != nil {
		t.Fatal(err)
	}
	c.line(t)
	life := func(want Life) {
		t.Helper()
		if got, err := seats.At(0).Life(); got != want || err != nil {
			t.Errorf("%v, %v, want %v", got, err, want)
		}
	}
	life(LockLost)
	takeSeat(t, o, 8, 1).Leave()
	seats.At(0).word(seatProgram).Add(1)
	life(Dead)
	takeSeat(t, o, 8, 0).Leave()
	c.kill()
}

// TestSeatLeavesOthers: who lost the lock of his seat leaves the record to the next, and closes no
// descriptor that is another file's by now.
func TestSeatLeavesOthers(t *testing.T) {
	o := sharedObject(t, openTestDir(t), "a")
	s := takeSeat(t, o, 2, 0)
	before := s.Owner()
	if err := unix.Dup3(0, s.fd, unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	fd := s.fd
	s.Leave()
	if after := s.Owner(); after != before {
		t.Errorf("it wrote %+v", after)
	}
	if err := unix.Close(fd); err != nil {
		t.Errorf("it closed another's descriptor: %v", err)
	}
}

// TestSeatRecordReplaced: whoever replaces the record of who died, and is killed over it, leaves
// how many did.
func TestSeatRecordReplaced(t *testing.T) {
	s := (&Object{}).Seats(make([]byte, SeatBytes)).At(0)
	dies := func(generation uint64) {
		s.word(seatPID).Store(7)
		s.word(seatGen).Store(generation)
	}
	dies(1)
	s.deaths().store(s.Owner())
	dies(2)
	s.word(seatDeath + deadGen).Store(0) // the first store
	if d := s.Deaths(); len(d) != 1 || d[0].Count != 1 || d[0].PID != 0 {
		t.Errorf("begun: %+v", d)
	}
	s.word(seatDeath + deadTally).Store(2<<tallyBits | 2) // and the second
	if d := s.Deaths(); len(d) != 1 || d[0].Count != 2 || d[0].PID != 7 || d[0].Generation != 2 {
		t.Errorf("counted: %+v", d)
	}
	s.deaths().store(s.Owner())
	if d := s.Deaths(); len(d) != 1 || d[0].Count != 2 || d[0].Generation != 2 {
		t.Errorf("done: %+v", d)
	}
}

func TestSeatMisuse(t *testing.T) {
	d := openTestDir(t)
	o := sharedObject(t, d, "a")
	for _, n := range []int{0, maxSeats + 1} {
		if _, err := o.Seats(make([]byte, n*SeatBytes)).Take(); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%d seats: %v", n, err)
		}
	}
	looked := openObject(t, d, "a", Inspect).Seats(make([]byte, SeatBytes))
	if _, err := looked.Take(); !errors.Is(err, syscall.EACCES) {
		t.Errorf("an inspector takes a seat: %v", err)
	}
	seats := seatsOf(t, o, 1)
	o.Close()
	if _, err := seats.Take(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	if _, err := seats.At(0).Life(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}
