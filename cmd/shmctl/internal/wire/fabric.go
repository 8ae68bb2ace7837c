package wire

import (
	"errors"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/fabric"
	"github.com/shmring/shmring/shm"
)

// Endpoint is one of package fabric with a queue of its own, which several goroutines may read.
type Endpoint struct {
	*fabric.Endpoint
	Queue  *cq.Queue
	Writer *cq.Writer
}

// OpenEndpoint makes one, with room for so many completions.
func OpenEndpoint(d *shm.Dir, name string, size int, o fabric.Options) (e Endpoint, err error) {
	return MakeEndpoint(size, o, func(o fabric.Options) (*fabric.Endpoint, error) {
		return fabric.Open(d, name, o)
	})
}

// MakeEndpoint makes one in any way.
func MakeEndpoint(size int, o fabric.Options, open func(fabric.Options) (*fabric.Endpoint, error)) (
	e Endpoint, err error) {
	e.Queue, err = cq.Create(cq.Unnamed("ends"), cq.Options{Size: size, Shared: true})
	if err != nil {
		return e, err
	}
	if e.Writer, err = e.Queue.Writer(); err == nil {
		o.Transmit, o.Receive, o.Progress = e.Writer, e.Writer, []*cq.Queue{e.Queue}
		if e.Endpoint, err = open(o); err == nil {
			return e, nil
		}
		err = errors.Join(err, e.Writer.Close())
	}
	return e, errors.Join(err, e.Queue.Close())
}

// Take has read take completions, and calls f with each, one that failed among them. empty says
// that there was nothing.
func (e Endpoint) Take(read func([]cq.Entry) (int, error),
	f func(*cq.ErrorEntry)) (empty bool, err error) {
	var dst [16]cq.Entry
	n, err := read(dst[:])
	for i := range dst[:max(n, 0)] {
		f(&cq.ErrorEntry{Context: dst[i].Context, Flags: dst[i].Flags, Len: dst[i].Len,
			Buf: dst[i].Buf, Data: dst[i].Data, Tag: dst[i].Tag})
	}
	if errors.Is(err, cq.ErrAvail) {
		failed := cq.ErrorEntry{ErrData: make([]byte, 0, fabric.AddressBytes)}
		if err = e.Queue.ReadErr(&failed); err == nil {
			f(&failed)
		}
	}
	if errors.Is(err, cq.ErrWouldBlock) {
		return true, nil
	}
	return false, err
}

// Close closes it, and what it completed to.
func (e Endpoint) Close() error {
	return errors.Join(e.Endpoint.Close(), e.Writer.Close(), e.Queue.Close())
}
