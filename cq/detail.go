package cq

import (
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/shm"
)

// shape is what is fixed when a queue is created.
type shape struct {
	Options
	events      bool // an event queue
	detailBytes int  // size of a detail record
}

// queueShape returns the shape of a completion queue.
func queueShape(o Options) shape { return shape{Options: o, detailBytes: kind.ErrorBytes} }

// attrs returns what the attributes of the queue's object say.
func (o shape) attrs() kind.Queue {
	return kind.Queue{Events: o.events, Format: uint64(o.Format), Overrun: uint64(o.Overrun),
		Lifetime: uint64(o.Lifetime), Wait: uint64(o.Wait), Trust: uint64(o.Trust),
		ReaderPays: !o.WritersPay, Capacity: o.Size, Rows: o.rows(), DetailBytes: o.detailBytes}
}

// stored returns the options that a reader object was created with, bounded.
func stored(op, name string, h shm.Header) (shape, error) {
	a, err := kind.StoredQueue(op, name, h)
	return shape{Options: Options{Format: Format(a.Format), Size: a.Capacity, MaxLanes: a.Rows - 1,
		Overrun: Overrun(a.Overrun), Lifetime: Lifetime(a.Lifetime), Wait: WaitObject(a.Wait),
		WritersPay: !a.ReaderPays, Trust: Trust(a.Trust),
	}, events: a.Events, detailBytes: a.DetailBytes}, err
}

func (o shape) fidKind() FIDKind {
	if o.events {
		return FIDEvents
	}
	return FIDQueue
}

// checkKind refuses to use one kind of queue as the other.
func (o shape) checkKind(op, name string, want shape) error {
	if o.events != want.events {
		return kind.Refuse(op, name, "kind", o.attrs().Kind(), want.attrs().Kind(), shm.ErrKind)
	}
	return nil
}

// keeps refuses error data that a record has no room for.
func keeps(d *kind.Details, errData []byte, op, name string) error {
	if len(errData) > d.Room() {
		return kind.Refuse(op, name, "len(ErrData)", len(errData), d.Room(), ErrInvalid)
	}
	return nil
}
