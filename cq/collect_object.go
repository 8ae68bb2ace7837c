package cq

import (
	"errors"
	"io/fs"

	"github.com/shmring/shmring/doorbell"
	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/shm"
)

// RemainingObject judges an object that stands beside the queues, as [Remaining] does a queue.
//
// An object that means nothing without its process, as a bell does, is garbage when that is gone.
// Regions are [FatePersistent]: entries may refer to them, and nothing in them says whether.
func RemainingObject(d *shm.Dir, name string, o Removal) (Remains, error) {
	obj, err := d.Open(name, shm.Inspect)
	if n, cut := cutOff(d, name, err, o); cut {
		return Remains{Fate: FateGarbage, Cut: true, SizeBytes: n}, nil
	}
	if err != nil {
		return Remains{}, failed("judge", name, err)
	}
	defer obj.Close()
	r, err := judgeObject(obj, o)
	if err != nil {
		return r, failed("judge", name, err)
	}
	return r, nil
}

// RemoveObject removes an object that [RemainingObject] calls garbage, as [Remove] does a queue.
func RemoveObject(d *shm.Dir, name string, o Removal) error {
	obj, err := d.Open(name, shm.ReadWrite)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if _, cut := cutOff(d, name, err, o); cut {
		if err = d.RemoveAbandoned(name); err == nil {
			return nil
		}
	}
	if err == nil {
		err = removeObject(obj, o)
		_ = obj.Close()
	}
	var busy *shm.BusyError
	switch {
	case errors.As(err, &busy):
		err = errKept // somebody has it by now
	case errors.Is(err, shm.ErrStale), errors.Is(err, fs.ErrNotExist):
		return nil // somebody else removed it
	}
	if err != nil {
		return failed("remove", name, err)
	}
	return nil
}

// cutOff reports whether an error of opening an object is one of a rest that nobody has any more,
// and how long that is. An empty file may be anybody's, unless it is asked for by its name.
func cutOff(d *shm.Dir, name string, err error, o Removal) (bytes uint64, cut bool) {
	if !errors.Is(err, shm.ErrTruncated) {
		return 0, false
	}
	n, err := d.Abandoned(name)
	return n, err == nil && (n > 0 || o.Waiting)
}

func removeObject(obj *shm.Object, o Removal) error {
	r, err := judgeObject(obj, o)
	if err == nil && r.Fate != FateGarbage {
		err = errKept
	}
	if err != nil {
		return err
	}
	// Under the lock nobody has it, and of what is judged only the owner's record could have changed
	// since, and whether its owner has destroyed it.
	err = obj.Claim(func() error {
		life := shm.Dead
		if obj.Owner().State == shm.StateReleased {
			life = shm.Released
		}
		if f, err := objectFate(obj, life, o); err != nil || f != FateGarbage {
			return errors.Join(err, errKept)
		}
		return nil
	})
	if err != nil {
		return err
	}
	crash.At(crash.CollectObject)
	return obj.Unlink()
}

func judgeObject(obj *shm.Object, o Removal) (r Remains, err error) {
	h := obj.Header()
	r.Kind, r.SizeBytes = h.Kind, h.TotalBytes
	if h.Kind == shm.KindCounter { // its owner's record is that of who made it, long ago perhaps
		if who, alive, err := counterUser(obj); alive || err != nil {
			r.Fate, r.Owner = FateLiving, who
			return r, err
		}
	}
	life, err := obj.Life()
	if err != nil {
		return r, err
	}
	fault := shm.Guard(func() { r.Owner = kind.Present(obj.Owner()) })
	if fault != nil {
		return r, fault
	}
	if r.livesOrMay(life) {
		return r, nil
	}
	r.Owner = shm.Owner{}
	fault = shm.Guard(func() { r.Fate, err = objectFate(obj, life, o) })
	return r, errors.Join(fault, err)
}

// objectFate judges an object that nobody has.
func objectFate(obj *shm.Object, life shm.Life, o Removal) (Fate, error) {
	h := obj.Header()
	lifetime := Ephemeral
	switch h.Kind {
	case shm.KindBell, shm.KindEndpoint, shm.KindCapture:
		return FateGarbage, nil
	case shm.KindCounter:
		c, err := storedCounter("judge", obj.Name(), h)
		if err != nil {
			return 0, err
		}
		life, lifetime = shm.Dead, c.Lifetime // its maker leaves it to all who have it open
	case shm.KindAddresses:
		a, err := storedAddresses("judge", obj.Name(), h)
		if err != nil {
			return 0, err
		}
		if err := addressesOpen("judge", obj); err != nil {
			if errors.Is(err, ErrClosed) {
				return FateGarbage, nil
			}
			return 0, err
		}
		lifetime = a.Lifetime
	case shm.KindRegion, shm.KindUMEM:
		lifetime = Persistent
	default:
		return FateForeign, nil
	}
	return fateOf(life, lifetime, false, 0, o), nil
}

// counterUser looks for a handle of a living process, and says whose it is. A seat that was just
// taken has the row of who sat there before; nobody who closed has a row, so one that means
// somebody who lives is his. Whoever makes or removes the counter has all seats for a moment.
func counterUser(obj *shm.Object) (who shm.Owner, alive bool, err error) {
	words, err := kind.WordsOf[kind.CounterWords](obj, kind.SectCounter, 0)
	if err != nil {
		return who, false, err
	}
	for i := range doorbell.CountSeats {
		taken, err := obj.Seated(i)
		if err != nil {
			return who, false, err
		}
		if !taken {
			continue
		}
		alive = true
		fault := shm.Guard(func() { who = words.Rows[i].Sitting() })
		if fault != nil || who.PID != 0 {
			return who, true, fault
		}
	}
	if !alive {
		alive, err = obj.Standing(doorbell.CountSeats)
	}
	if err == nil && alive {
		err = shm.Guard(func() { who = kind.Present(obj.Owner()) })
	}
	return who, alive, err
}
