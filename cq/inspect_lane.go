package cq

import (
	"errors"

	"github.com/shmring/shmring/doorbell"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/shm"
)

// lane looks at one lane. A fault in it costs this lane only.
func (i *Inspector) lane(row int, f foundLane, r *kind.RowWords) LaneSnapshot {
	l := LaneSnapshot{Row: row, Own: row == 0}
	err := f.err
	if err == nil {
		fault := shm.Guard(func() { err = i.readLane(&l, f.obj, r) })
		err = errors.Join(fault, err)
	}
	if err != nil {
		return LaneSnapshot{Row: row, Own: row == 0, Err: err}
	}
	return l
}

func (i *Inspector) readLane(l *LaneSnapshot, obj *shm.Object, r *kind.RowWords) (err error) {
	mem, err := kind.SectionOf(obj, kind.SectLane, uint32(l.Row), kind.LaneBytes)
	if err != nil {
		return err
	}
	if l.Life, err = obj.Life(); err != nil {
		return err
	}
	words := kind.Overlay[kind.LaneWords](mem)
	if l.Level, err = kind.ReadLevel(r, words, uint64(i.opt.Size), obj.Name()); err != nil {
		return err
	}
	l.Writer, l.Generation = obj.Owner(), obj.Generation()
	l.Traffic = words.Traffic()
	bell := r.Bell.Parked.Load()
	l.Parked, l.Poisoned = bell&doorbell.Parked != 0, bell&kind.RowPoisoned != 0
	l.Overrun = words.Overrun.Load() != 0
	l.ReaderPays = words.Order.Load() == kind.OrderRelease
	l.SizeBytes = obj.Header().TotalBytes
	return nil
}
