package shm

import (
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/file"
)

// SeatBytes is how much memory the record of a seat takes.
const SeatBytes = 128

// The record of a seat, in bytes from its start. Whoever has the seat writes it.
const (
	seatGen   = 0 // generation of who has it, stored last; 0: nobody, or one who just comes
	seatPID   = seatGen + 8
	seatPIDNS = seatPID + 8
	seatStart = seatPIDNS + 8
	seatDeath = seatStart + 8       // the last who died in it, as an object records it
	seatLast  = seatDeath + deadEnd // generation of the last who left it
	// The program of who has it, and the generation that this is of, as in the owner record.
	seatProgram    = seatLast + 8
	seatProgramGen = seatProgram + 8
	seatEnd        = seatProgramGen + 8
)

var (
	_ = pin[seatDeath-0x20]
	_ = pin[seatLast-0x48]
	_ = pin[seatProgramGen-0x58]
	_ = [1]struct{}{}[uint(seatEnd)/(SeatBytes+1)]
)

// Seats are a number of places at an object that many processes write together. A seat is a lock on
// one byte of the file, through a private descriptor, so it is free again when its holder dies, in
// any PID namespace. A process that finds no free seat stands. While a process sits or stands the
// object cannot be claimed. The owner has all seats: whoever makes an object for many releases it
// first.
//
// The record of a seat is what the owner record is of an object: it says who has the seat, in
// generations that grow, and who died in it.
type Seats struct {
	o       *Object
	records []byte
}

// maxSeats bounds the bytes that are tried.
const maxSeats = 1 << 12

// Seats returns the seats whose records, SeatBytes each, lie in memory of the object. That must be
// writable for [Seats.Take], and stay mapped as long as a seat is had or looked at.
func (o *Object) Seats(records []byte) Seats { return Seats{o, records} }

func (s Seats) n() int { return len(s.records) / SeatBytes }

// Seat is one of the Seats of an object: one that this process took, or one to look at, which
// another process may have.
type Seat struct {
	o       *Object
	index   int
	record  []byte // nil of who stands
	mu      sync.Mutex
	fd      int    // -1 unless we have it; never sent, never an *os.File
	own     uint64 // generation of ours
	claimed claimNote
}

// At returns a seat to look at.
func (s Seats) At(i int) *Seat {
	return &Seat{o: s.o, index: i, record: s.records[i*SeatBytes : (i+1)*SeatBytes], fd: -1}
}

// Standing reports whether a living process had to stand.
func (s Seats) Standing() (bool, error) {
	s.o.mu.Lock()
	defer s.o.mu.Unlock()
	if s.o.closed {
		return false, named("probe", s.o.name, os.ErrClosed)
	}
	locked, err := s.o.byteLocked(int64(s.n()), true)
	return locked, named("probe", s.o.name, err)
}

// Take takes the lowest free seat and notes that this process has it; a former holder that died
// there is recorded first. If all are taken the process stands: Index of the result is -1, and
// Standing tells others. While a process owns the object, as its maker and its remover do for a
// moment, the error is a *[BusyError].
func (s Seats) Take() (*Seat, error) {
	const op = "take a seat at"
	o := s.o
	if n := s.n(); n < 1 || n > maxSeats {
		return nil, named(op, o.name, invalid("seats", n, "from 1 to 4096"))
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return nil, named(op, o.name, os.ErrClosed)
	}
	if o.acc == Inspect {
		return nil, &Error{Op: op, Name: o.name, Err: syscall.EACCES,
			Hint: "open it ReadOnly instead of Inspect"}
	}
	fd, err := sysReopen(o.anyFD(), true)
	if err != nil {
		return nil, named(op, o.name, err)
	}
	seat, err := s.sit(fd)
	if err == nil {
		return seat, nil
	}
	if file.GiveUp(fd); file.Busy(err) {
		err = o.busy()
	}
	return nil, named(op, o.name, err)
}

// sit takes a seat for the description behind fd, or stands.
func (s Seats) sit(fd int) (*Seat, error) {
	// Standing first: it succeeds unless somebody owns the whole object, and keeps it from being
	// claimed while the seats are tried.
	n := int64(s.n())
	if err := file.Lock(fd, n, false); err != nil {
		return nil, err
	}
	for i := range n {
		err := file.Lock(fd, i, true)
		if file.Busy(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		seat := s.At(int(i))
		crash.At(crash.CountSeated)
		err = guarded(func() error { return seat.take() })
		if err == nil {
			seat.fd = fd
			file.Unlock(fd, n)
			return seat, nil
		}
		seat.claimed.drop()
		file.Unlock(fd, i)
		if err != errLives {
			return nil, err
		}
	}
	return &Seat{o: s.o, index: -1, fd: fd}, nil
}

// errLives: the lock of a seat is free though who has it lives, and may still write its record.
var errLives = lockLost()

// take writes the record, under the lock.
func (s *Seat) take() error {
	before, _ := s.load()
	if life, _ := s.ownerLife(); life == LockLost {
		return errLives
	}
	deaths := s.deaths()
	if before.State == StateOwned {
		deaths.store(before)
	}
	me, generation := Self(), max(before.Generation+1, 1)
	s.claimed.set(s.o, s.index)
	s.word(seatGen).Store(0)
	s.word(seatPID).Store(uint64(me.PID))
	s.word(seatPIDNS).Store(me.PIDNS)
	s.word(seatStart).Store(me.StartTicks)
	s.word(seatProgram).Store(me.Program)
	s.word(seatProgramGen).Store(generation)
	s.word(seatGen).Store(generation) // from here on the record holds
	s.own = generation
	return nil
}

// Index returns the number of the seat, or -1 if its holder stands.
func (s *Seat) Index() int { return s.index }

// Leave gives the seat back, of one that was taken. It may be called again.
func (s *Seat) Leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fd < 0 {
		return
	}
	// A stray close in this process may have dropped the lock, and then the seat can be another's.
	info, err := sysStat(s.fd)
	ours := err == nil && info.ino == s.o.ino && info.dev == s.o.dev
	if ours && s.record != nil {
		_ = Guard(func() {
			s.word(seatLast).Store(s.own) // before nobody has it: the next one counts on
			s.word(seatGen).Store(0)
		})
	}
	crash.At(crash.CountLeaving)
	if ours {
		file.GiveUp(s.fd)
	}
	s.claimed.drop()
	s.fd = -1
}

func (s *Seat) word(off int) *atomic.Uint64 { return word(s.record, off) }

func (s *Seat) deaths() deathLog { return deathLog{s.record, seatDeath, 1} }

// load reads the record afresh, unless it is replaced all the time.
func (s *Seat) load() (Owner, bool) {
	generation := s.word(seatGen)
	for range ownerTries {
		g := generation.Load() // pairs with the last store in take
		o := Owner{PID: boundPID(s.word(seatPID).Load()), PIDNS: s.word(seatPIDNS).Load(),
			StartTicks: s.word(seatStart).Load(), State: StateOwned, Generation: g}
		if g == 0 {
			o.State = StateReleased
			o.Generation = max(s.word(seatLast).Load(), s.word(seatDeath+deadGen).Load())
		} else if s.word(seatProgramGen).Load() == g {
			o.Program = s.word(seatProgram).Load()
		}
		if generation.Load() == g {
			return o, true
		}
	}
	return Owner{}, false
}

// Owner reads who has the seat, or had it last and left: then its State is [StateReleased]. It is
// never torn. An inspector calls it, and Deaths, inside [Guard].
func (s *Seat) Owner() Owner {
	o, _ := s.load()
	return o
}

// Deaths returns the last holder that died in the seat and after whom another process took it, as
// [Object.Deaths] does. While that record is replaced only its count is known.
func (s *Seat) Deaths() []Death {
	if all := s.deaths().load(); len(all) > 0 {
		return all
	}
	// Whoever replaces it may have been killed over that. The tally says of whom it is.
	tally := s.word(seatDeath + deadTally).Load()
	if tally>>tallyBits == 0 {
		return nil
	}
	d := Death{Count: tally >> tallyBits}
	if o := s.Owner(); o.State == StateOwned && uint16(tally) == uint16(o.Generation) {
		d.Owner = o
	}
	return []Death{d}
}

// Life finds out how the seat stands with who has it, as [Object.Life].
func (s *Seat) Life() (Life, error) {
	s.o.mu.Lock()
	defer s.o.mu.Unlock()
	if s.o.closed {
		return 0, named("probe", s.o.name, os.ErrClosed)
	}
	return s.o.lifeBy(func() (bool, error) { return s.o.byteLocked(int64(s.index), false) },
		s.ownerLife)
}

// ownerLife assesses who is noted in a seat whose lock is free.
func (s *Seat) ownerLife() (Life, error) {
	owner, ok := s.load()
	switch {
	case !ok:
		return LockLost, nil // somebody writes it
	case owner.State == StateOwned && owner.PID == 0:
		return Dead, nil // that is no process
	}
	return s.o.lifeOf(owner, s.index), nil
}

// OwnerDied reports whether who has the seat is proved dead, and who it was, as
// [Object.OwnerDied].
func (s *Seat) OwnerDied() (Owner, bool, error) { return ownerDied(s) }

// byteLocked asks through a description that does not hold the lock of the object.
func (o *Object) byteLocked(at int64, shared bool) (bool, error) {
	fd, err := o.openFD()
	if err != nil {
		return false, err
	}
	return file.Locked(fd, at, shared)
}
