package cq_test

import (
	"encoding/binary"
	"errors"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
)

const fuzzSize = 8

// fuzzLane is what an honest writer would have left after n entries of a kind.
func fuzzLane(n, kind uint64) []byte {
	mem := make([]byte, 512+fuzzSize*cq.SlotBytes)
	binary.LittleEndian.PutUint64(mem, n)
	for i := range min(n, fuzzSize) {
		binary.LittleEndian.PutUint64(mem[512+i*cq.SlotBytes+56:], kind|i<<32)
	}
	return mem
}

// FuzzLane has arbitrary bytes as a lane's words, slots and error details, and as the reader's row
// of it. Whatever they are, the reader ends, hands out no more than the lane holds, and the other
// lane's entries come in order.
func FuzzLane(f *testing.F) {
	row := make([]byte, cq.RowBytes)
	row[0] = 1
	f.Add(fuzzLane(3, 1), row, []byte{0, 1, 2, 3, 4, 5, 6, 7})
	f.Add(fuzzLane(8, 2), row, []byte{4, 0, 4, 0, 2})
	f.Add(fuzzLane(9, 1), row, []byte{1, 3})
	f.Add(fuzzLane(^uint64(0), 0), row, []byte{0, 0, 0})
	f.Add(fuzzLane(5, 3), append([]byte{8}, row[1:]...), []byte{5, 5})
	f.Add([]byte{}, []byte{0xff}, []byte{6})
	f.Fuzz(func(t *testing.T, lane, row, steps []byte) {
		d := openDir(t)
		o := cq.Options{Size: fuzzSize, MaxLanes: 2, Spin: -1, Wait: cq.WaitFD}
		if len(steps) > 0 && steps[0]&0x80 != 0 {
			o.Overrun = cq.OverrunQueue
		}
		name := "fuzz"
		q, err := cq.Create(d, name, o)
		must(t, err)
		spec := cq.LaneSpec(1, fuzzSize, cq.QueueUUID(q))
		must(t, q.Detach())
		plantLane(t, d, name, spec, lane, row)
		w, err := cq.Attach(t.Context(), d, name, cq.WriterOptions{})
		must(t, err)
		q, err = cq.Adopt(d, name, cq.Options{Spin: -1})
		if err != nil {
			t.Fatal(err)
		}
		good, bad := uint64(0), 0
		if w.Lane() == 2 {
			post(t, w, 1000, 1004)
		} else {
			good = 4 // nobody owns the planted lane: the writer took it over
			_ = w.Post(&cq.Entry{Context: 1})
			_ = w.Credit(1)
			_ = w.PostErrorCredited(&cq.ErrorEntry{})
		}
		see := func(es []cq.Context) {
			for _, e := range es {
				if w.Lane() == 2 && e.Context == 1000+good {
					good++
				} else {
					bad++
				}
			}
		}
		steps = steps[:min(len(steps), 64)]
		for i := range len(steps) + 64 {
			step := byte(0)
			if i < len(steps) {
				step = steps[i]
			}
			es, err := fuzzStep(q, step)
			see(es)
			if i >= len(steps) && err == cq.ErrWouldBlock {
				break
			}
		}
		if good != 4 || bad > 2*fuzzSize {
			t.Errorf("%d good entries, %d others", good, bad)
		}
		must(t, w.Close())
		closeQueue(t, q)
		must(t, os.RemoveAll(d.Path()+"/"+name))
	})
}

// plantLane makes the lane object and scribbles on the reader's row of it.
func plantLane(t *testing.T, d *shm.Dir, name string, spec shm.Spec, lane, row []byte) {
	t.Helper()
	sub, err := d.Sub(name, false)
	must(t, err)
	defer sub.Close()
	obj, err := sub.Create("lane-0001", spec, func(o *shm.Object) error {
		for _, kind := range []shm.SectionKind{cq.SectLane, cq.SectSlots, cq.SectErrors} {
			mem, _, err := o.Section(kind, 1)
			if err != nil {
				return err
			}
			n := copy(mem[:min(512, len(mem))], lane)
			lane = lane[n:]
		}
		return nil
	})
	must(t, err)
	must(t, obj.Close())
	reader, err := sub.Open(cq.ReaderFile, shm.ReadWrite)
	must(t, err)
	mem, _, err := reader.Section(cq.SectRows, 0)
	must(t, err)
	copy(mem[cq.RowBytes:2*cq.RowBytes], row)
	must(t, reader.Close())
}

// fuzzStep makes one call of the reader's.
func fuzzStep(q *cq.Queue, step byte) ([]cq.Context, error) {
	dst := make([]cq.Context, 1+step>>3&15)
	var n int
	var err error
	switch step & 7 {
	case 0, 7:
		n, err = cq.Read(q, dst)
	case 1:
		n, err = sread(q, dst, 0)
	case 2:
		n, err = sread(q, dst, 50*time.Microsecond, 3)
	case 3:
		var es []cq.Entry
		es, err = q.Peek(len(dst))
		for i := range es {
			dst[i].Context = es[i].Context
		}
		if n = len(es); q.Release(n) != nil {
			panic("release of what was peeked")
		}
	case 4:
		e := cq.ErrorEntry{ErrData: make([]byte, 100)}
		if err = q.ReadErr(&e); len(e.ErrData) > cq.ErrDataMaxBytes {
			if err == nil {
				panic("more detail than there can be")
			}
		}
	case 5:
		err = q.TryWait()
	case 6:
		cq.MarkLane(q, 1)
	}
	if err == cq.ErrAvail && q.ReadErr(&cq.ErrorEntry{}) != nil {
		panic("an error that cannot be taken")
	}
	var e *cq.LaneError
	if errors.As(err, &e) && !errors.Is(err, syscall.EBADMSG) {
		panic(err)
	}
	return dst[:n], err
}
