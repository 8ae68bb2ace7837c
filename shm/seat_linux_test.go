package shm

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/shmtest"
)

// sharedObject makes an object that belongs to nobody, as one for many processes does.
func sharedObject(t *testing.T, d *Dir, name string) *Object {
	t.Helper()
	o := shmtest.Got(d.Create(name, specFor(""), nil)).Or(t)
	forget(t, d, name)
	t.Cleanup(func() { o.Close() })
	if _, err := seatsOf(t, o, 2).Take(); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("a seat beside the owner: %v", err)
	}
	must(t, o.Release())
	return o
}

// seatsOf are n seats at an object, with their records in its memory.
func seatsOf(t *testing.T, o *Object, n int) Seats {
	t.Helper()
	w := shmtest.Have(o.Window(secData, 0)).In(t)
	return o.Seats(w.Bytes()[:n*SeatBytes])
}

func takeSeat(t *testing.T, o *Object, n, want int) *Seat {
	t.Helper()
	s := shmtest.Got(seatsOf(t, o, n).Take()).Or(t)
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
	must(t, again.Claim(nil))
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
	c.Says(t, "seat 1")
	wantTaken(t, "the child's", true, seated(seats, 1))
	if who := seats.At(1).Owner(); who.PID != c.Process.Pid || who.State != StateOwned {
		t.Errorf("the child's seat is that of %+v", who)
	}
	c.Kill()
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
	o := shmtest.Needs(childDir().Open(os.Getenv(envObject), ReadOnly))
	w := shmtest.Needs(o.Window(secData, 0))
	s := shmtest.Needs(o.Seats(w.Bytes()[:8*SeatBytes]).Take())
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
	c.Line(t)
	if _, err := c.In.Write([]byte{1}); err != nil {
		t.Fatal(err)
	}
	c.Line(t)
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
	c.Kill()
}

// TestSeatLeavesOthers: who lost the lock of his seat leaves the record to the next, and closes no
// descriptor that is another file's by now.
func TestSeatLeavesOthers(t *testing.T) {
	o := sharedObject(t, openTestDir(t), "a")
	s := takeSeat(t, o, 2, 0)
	before := s.Owner()
	must(t, unix.Dup3(0, s.fd, unix.O_CLOEXEC))
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

// envLeaves says what a leaver gives back.
const envLeaves = "SHMRING_TEST_LEAVES"

func init() {
	moreRoles["splitter"] = childSplitter
	moreRoles["leaver"] = childLeaver
	moreRoles["elapsed"] = childElapsed
}

// childSplitter makes an object, and a copy of its process that has the lock too.
func childSplitter() {
	o := shmtest.Needs(childDir().Create(os.Getenv(envObject), specFor(""), nil))
	pid := shmtest.Needs(shmtest.Fork())
	say("ready %d and %d", o.Owner().PID, pid)
	childSleep()
}

// TestForkKeepsTheLock: a process that was forked without an exec has the lock of its parent. While
// it lives nobody takes the object over, and whoever wants to is told why; that the owner itself is
// dead is known all the same.
func TestForkKeepsTheLock(t *testing.T) {
	shmtest.Conforms(t)
	d := openTestDir(t)
	forget(t, d, "a")
	c := startChild(t, "splitter", envObject+"=a")
	var owner, heir int
	if _, err := fmt.Sscanf(c.Line(t), "ready %d and %d", &owner, &heir); err != nil {
		t.Fatal(err)
	}
	end := func() { _ = syscall.Kill(heir, syscall.SIGKILL) }
	defer end()
	o := openObject(t, d, "a", ReadWrite)
	var busy *BusyError
	if err := o.Claim(nil); !errors.As(err, &busy) || busy.Gone {
		t.Errorf("while both live: %v", err)
	}
	_ = c.Process.Kill()
	_ = c.Wait() // no end of its output: the copy has that too
	if w, died, err := o.OwnerDied(); !died || err != nil || w.PID != owner {
		t.Errorf("the owner %d: %+v, %v, %v", owner, w, died, err)
	}
	wantLife(t, o, Alive)
	if err := o.Claim(nil); !errors.As(err, &busy) || !busy.Gone || busy.PID != owner ||
		!strings.Contains(err.Error(), "forked") {
		t.Errorf("while the copy lives: %v", err)
	}
	end()
	eventually(t, "the copy's death", func() bool { return o.Claim(nil) == nil })
}

// childLeaver takes a seat, or the lock, makes a copy of its process, and gives it back.
func childLeaver() {
	o := shmtest.Needs(childDir().Open(os.Getenv(envObject), ReadWrite))
	var pid int
	if os.Getenv(envLeaves) == "seat" {
		s := shmtest.Needs(o.Seats(make([]byte, 2*SeatBytes)).Take())
		pid = shmtest.Needs(shmtest.Fork())
		s.Leave()
	} else {
		_ = o.Claim(func() (err error) {
			pid = shmtest.Needs(shmtest.Fork())
			return errors.New("not now")
		})
	}
	say("left to %d", pid)
	childSleep()
}

// TestForkKeepsNoSeat: what a process has given back is not kept by a copy that it forked before.
func TestForkKeepsNoSeat(t *testing.T) {
	for _, kind := range []string{"seat", "refused claim"} {
		t.Run(kind, func(t *testing.T) {
			d := openTestDir(t)
			o := sharedObject(t, d, "a")
			c := startChild(t, "leaver", envObject+"=a", envLeaves+"="+kind)
			var heir int
			if _, err := fmt.Sscanf(c.Line(t), "left to %d", &heir); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = syscall.Kill(heir, syscall.SIGKILL) }()
			must(t, o.Claim(nil))
		})
	}
}

// childElapsed makes an object in a time namespace.
func childElapsed() {
	o := shmtest.Needs(childDir().Create(os.Getenv(envObject), specFor(""), nil))
	say("ready %d", o.Owner().StartTicks)
	childSleep()
}

// TestTimeNamespace: a process that counts its time otherwise is not taken for dead because its
// start time looks different.
func TestTimeNamespace(t *testing.T) {
	shmtest.Conforms(t)
	d := openTestDir(t)
	forget(t, d, "a")
	c := shmtest.Child(t, "elapsed", envObject+"=a")
	shmtest.Unshared(t, "timens", c, "--time", "--boottime", "1000")
	run := shmtest.StartWith(t, c, "timens")
	ticks, _ := strconv.Atoi(strings.TrimPrefix(run.Line(t), "ready "))
	o := openObject(t, d, "a", ReadWrite)
	if w := o.Owner(); ticks != 0 && w.StartTicks != 0 {
		t.Errorf("it says that it started at %d", ticks)
	}
	if w, died, err := o.OwnerDied(); died || err != nil {
		t.Errorf("it is alive: %+v, %v", w, err)
	}
	if alive, known := ProcessAlive(o.Owner()); known && !alive {
		t.Error("it is taken for dead")
	}
	wantLife(t, o, Alive)
	run.Kill()
	if _, died, err := o.OwnerDied(); !died || err != nil {
		t.Errorf("it is dead: %v", err)
	}
	must(t, o.Claim(nil))
}
