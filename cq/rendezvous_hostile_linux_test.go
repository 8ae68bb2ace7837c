package cq_test

import (
	"context"
	"errors"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// receive returns one message of a peer.
func receive(t testing.TB, c *net.UnixConn) (n int, fds []int) {
	t.Helper()
	must(t, c.SetReadDeadline(time.Now().Add(time.Minute)))
	n, fds, err := shm.RecvFDs(c, make([]byte, 64), 4)
	must(t, err)
	return n, fds
}

// lane makes a lane object as a writer would.
func lane(t testing.TB, q *cq.Queue, row, capacity int, seals shm.Seals) *shm.Object {
	t.Helper()
	return sealedAs(t, cq.LaneSpec(row, capacity, cq.QueueUUID(q)), seals)
}

// sealedAs makes an object with these seals, which may be wrong.
func sealedAs(t testing.TB, spec shm.Spec, seals shm.Seals) *shm.Object {
	t.Helper()
	o := shmtest.Have(shm.CreateMemfd(spec, nil)).In(t)
	if seals != 0 {
		must(t, o.Seal(seals))
	}
	return o
}

// hostileWriter is what a writer sends, and how the meeting ends for the reader.
type hostileWriter struct {
	first  []byte
	second []byte
	fds    []int
	want   error
}

// meet has the reader of q accept such a writer.
func (tt hostileWriter) meet(t *testing.T, q *cq.Queue) {
	a, b := shmtest.Connected(t, unix.SOCK_STREAM)
	before := len(openFiles())
	ctx := soon(t)
	if errors.Is(tt.want, context.DeadlineExceeded) {
		brief, cancel := context.WithTimeout(ctx, 10*short)
		defer cancel()
		ctx = brief
	}
	if tt.first != nil {
		must(t, shm.SendFDs(b, tt.first))
	}
	done := accept(ctx, q, a)
	if tt.second != nil {
		n, fds := receive(t, b)
		if n != 64 || len(fds) != 2 { // the reader's object, and its process's bell or the end of a pipe
			t.Errorf("offer of %d bytes with %d descriptors", n, len(fds))
		}
		shm.CloseFDs(fds)
	}
	if len(tt.second) > 0 {
		must(t, shm.SendFDs(b, tt.second, tt.fds...))
	}
	err := <-done
	if err == nil || tt.want != nil && !errors.Is(err, tt.want) {
		t.Errorf("%v, want %v", err, tt.want)
	}
	noMoreFiles(t, before)
}

// TestHostileMeetingWriter: whatever a writer sends instead of what was agreed is a typed error,
// the descriptors that came with it are closed, and the row is free for the next writer.
func TestHostileMeetingWriter(t *testing.T) {
	const size = 8
	q := anonymous(t, cq.Options{Size: size, MaxLanes: 1})
	bells, err := cq.NewPollSet(nil, 0) // the bell takes descriptors too, once
	must(t, err)
	must(t, errors.Join(bells.Add(q), bells.Remove(q), bells.Close()))
	uuid := cq.QueueUUID(q)
	ask := cq.RendezvousMessage(cq.StepAsk, 0, 0, 0, shm.UUID{})
	bring := cq.RendezvousMessage(cq.StepLane, 0, cq.FDLane, 1, uuid)
	seals := shm.SealShrink | shm.SealGrow | shm.SealSeal
	r, w, err := os.Pipe()
	must(t, err)
	defer w.Close()
	defer r.Close()
	file := shmtest.Have(os.CreateTemp(t.TempDir(), "file")).In(t)
	reserved := append([]byte{}, ask...)
	reserved[60] = 1
	released := lane(t, q, 1, size, seals)
	must(t, released.Release())
	cut := lane(t, q, 1, size, 0)
	must(t, syscall.Ftruncate(cut.FD(), 4096))
	must(t, cut.Seal(seals))
	ahead := lane(t, q, 1, size, seals)
	poke(scribbler{ahead}.section(t, cq.SectLane, 1), 0, size+1)
	writers := map[string]hostileWriter{
		"nothing":         {nil, nil, nil, context.DeadlineExceeded},
		"reserved":        {reserved, nil, nil, cq.ErrCorrupt},
		"refusal":         {cq.RendezvousMessage(cq.StepAsk, 3, 0, 0, uuid), nil, nil, cq.ErrFormat},
		"unknown refusal": {cq.RendezvousMessage(cq.StepAsk, 1<<31, 0, 0, uuid), nil, nil, nil},
		"no lane":         {ask, cq.RendezvousMessage(cq.StepLane, 0, 0, 1, uuid), nil, cq.ErrCorrupt},
		"a lane and more": {ask, cq.RendezvousMessage(cq.StepLane, 0, cq.FDLane|cq.FDReader, 1, uuid),
			[]int{released.FD(), released.FD()}, cq.ErrCorrupt},
		"a pipe":        {ask, bring, []int{int(r.Fd())}, shm.ErrCorrupt},
		"an empty file": {ask, bring, []int{int(file.Fd())}, shm.ErrTruncated},
		"the reader":    {ask, bring, []int{cq.ReaderFD(q)}, shm.ErrKind},
		"another row": {ask, cq.RendezvousMessage(cq.StepLane, 0, cq.FDLane, 2, uuid),
			[]int{lane(t, q, 2, size, seals).FD()}, cq.ErrCorrupt},
		"lane of another row": {ask, bring, []int{lane(t, q, 2, size, seals).FD()}, cq.ErrCorrupt},
		"another queue": {ask, cq.RendezvousMessage(cq.StepLane, 0, cq.FDLane, 1, shm.NewUUID()),
			[]int{lane(t, q, 1, size, seals).FD()}, cq.ErrCorrupt},
		"lane of another queue": {ask, bring,
			[]int{lane(t, anonymous(t, cq.Options{}), 1, size, seals).FD()}, cq.ErrCorrupt},
		"small":    {ask, bring, []int{lane(t, q, 1, size/2, seals).FD()}, cq.ErrCorrupt},
		"unsealed": {ask, bring, []int{lane(t, q, 1, size, 0).FD()}, shm.ErrOwner},
		"cut":      {ask, bring, []int{cut.FD()}, shm.ErrTruncated},
		"read-only": {ask, bring,
			[]int{lane(t, q, 1, size, seals|shm.SealFutureWrite).FD()}, shm.ErrOwner},
		"ahead":    {ask, bring, []int{ahead.FD()}, cq.ErrCorrupt},
		"released": {ask, bring, []int{released.FD()}, cq.ErrPeerGone},
	}
	for name, tt := range writers {
		t.Run(name, func(t *testing.T) { tt.meet(t, q) })
	}
	next := join(t, q) // the row is not lost
	post(t, next, 0, 8)
	if got := drain(t, q); len(got) != 8 {
		t.Error(got)
	}
}

// readerObject makes a reader object without a reader.
func readerObject(t testing.TB, o cq.Options, seals shm.Seals) *shm.Object {
	t.Helper()
	return sealedAs(t, shmtest.Got(cq.ReaderSpec("reader", o)).Or(t), seals)
}

// hostileReader is what a reader sends, and how the meeting ends for the writer.
type hostileReader struct {
	offer []byte
	fds   []int
	done  []byte // sent when the lane came
	want  error
}

// meet has a writer attach to such a reader.
func (tt hostileReader) meet(t *testing.T) {
	a, b := shmtest.Connected(t, unix.SOCK_STREAM)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if errors.Is(tt.want, context.DeadlineExceeded) {
		ctx, cancel = context.WithTimeout(t.Context(), 20*short)
		defer cancel()
	}
	before := len(openFiles())
	if tt.offer != nil {
		must(t, shm.SendFDs(a, tt.offer, tt.fds...))
	}
	if tt.done != nil { // the steps do not depend on when they are sent
		must(t, shm.SendFDs(a, tt.done))
	}
	_, err := cq.Attach(ctx, cq.Over(b), cq.WriterOptions{})
	if err == nil || !errors.Is(err, tt.want) {
		t.Errorf("%v, want %v", err, tt.want)
	}
	noMoreFiles(t, before)
}

// TestHostileMeetingReader is the same from the other side. Both are alone: they count descriptors
// of the process.
func TestHostileMeetingReader(t *testing.T) {
	const size = 8
	const seals = shm.SealShrink | shm.SealGrow | shm.SealSeal
	q := anonymous(t, cq.Options{Size: size, MaxLanes: 2})
	withFD := anonymous(t, cq.Options{Size: size, Wait: cq.WaitFD})
	uuid := cq.QueueUUID(q)
	r, w, err := os.Pipe()
	must(t, err)
	defer w.Close()
	defer r.Close()
	offer := func(fds uint32) []byte {
		return cq.RendezvousMessage(cq.StepOffer, 0, fds, 1, uuid)
	}
	good := []int{cq.ReaderFD(q)}
	alive := lane(t, q, 1, size, seals)
	bare := readerObject(t, cq.Options{Size: size}, 0)
	readers := map[string]hostileReader{
		"nothing": {nil, nil, nil, context.DeadlineExceeded},
		"refusal": {cq.RendezvousMessage(cq.StepOffer, 1, 0, 0, uuid), nil, nil, cq.ErrLanes},
		"refusal of no number": {cq.RendezvousMessage(cq.StepOffer, 1<<20, 0, 0, uuid), nil, nil,
			syscall.ECONNREFUSED},
		"no reader":   {offer(0), nil, nil, cq.ErrCorrupt},
		"unknown":     {offer(cq.FDReader | 1<<9), good, nil, cq.ErrCorrupt},
		"one unknown": {offer(cq.FDReader | 1<<9), []int{good[0], good[0]}, nil, cq.ErrCorrupt},
		"a pipe":      {offer(cq.FDReader), []int{int(r.Fd())}, nil, shm.ErrCorrupt},
		"a lane":      {offer(cq.FDReader), []int{alive.FD()}, nil, shm.ErrKind},
		"unsealed":    {offer(cq.FDReader), []int{bare.FD()}, nil, shm.ErrOwner},
		"row 0":       {cq.RendezvousMessage(cq.StepOffer, 0, 1, 0, uuid), good, nil, cq.ErrCorrupt},
		"row 3":       {cq.RendezvousMessage(cq.StepOffer, 0, 1, 3, uuid), good, nil, cq.ErrCorrupt},
		"row -1": {cq.RendezvousMessage(cq.StepOffer, 0, 1, ^uint32(0), uuid), good, nil,
			cq.ErrCorrupt},
		"other queue": {cq.RendezvousMessage(cq.StepOffer, 0, 1, 1, shm.UUID{}), good, nil,
			cq.ErrCorrupt},
		"an eventfd too many": {offer(cq.FDReader | cq.FDEvent), []int{good[0], good[0]}, nil,
			cq.ErrCorrupt},
		"no eventfd": {cq.RendezvousMessage(cq.StepOffer, 0, cq.FDReader, 1, cq.QueueUUID(withFD)),
			[]int{cq.ReaderFD(withFD)}, nil, cq.ErrCorrupt},
		"not an eventfd": {cq.RendezvousMessage(cq.StepOffer, 0, cq.FDReader|cq.FDEvent, 1,
			cq.QueueUUID(withFD)), []int{cq.ReaderFD(withFD), int(w.Fd())}, nil, cq.ErrCorrupt},
		"lane of a living writer": {offer(cq.FDReader | cq.FDLane), []int{good[0], alive.FD()}, nil,
			syscall.EBUSY},
		"lane that is none": {offer(cq.FDReader | cq.FDLane), []int{good[0], good[0]}, nil,
			syscall.EBUSY},
		"done refused": {offer(cq.FDReader), good,
			cq.RendezvousMessage(cq.StepDone, 2, 0, 1, uuid), cq.ErrClosed},
		"never done": {offer(cq.FDReader), good, []byte{1}, context.DeadlineExceeded},
	}
	for name, tt := range readers {
		t.Run(name, tt.meet)
	}
	post(t, join(t, q), 0, 1)
}

// FuzzRendezvous has a peer that sends anything, with any descriptors, to both sides. Each ends
// with a writer or an error, and keeps nothing.
func FuzzRendezvous(f *testing.F) { fuzzMeeting(f, cq.SameUser) }

// FuzzRendezvousOthers is the same between different users.
func FuzzRendezvousOthers(f *testing.F) { fuzzMeeting(f, cq.CrossUser) }

func fuzzMeeting(f *testing.F, trust cq.Trust) {
	zero := shm.UUID{}
	message := func(step uint16, status, fds, row uint32) []byte {
		b := cq.RendezvousMessage(step, status, fds, row, zero)
		b[48] = byte(trust)
		return b
	}
	ask := message(cq.StepAsk, 0, 0, 0)
	f.Add(ask, message(cq.StepLane, 0, cq.FDLane, 1), uint16(1<<4)) // an honest writer
	f.Add(ask, message(cq.StepLane, 0, cq.FDLane, 2), uint16(1<<4))
	f.Add(ask, message(cq.StepLane, 0, cq.FDLane, 1), uint16(1<<3))
	f.Add(ask, message(cq.StepLane, 0, cq.FDLane, 1), uint16(2))
	f.Add(message(cq.StepOffer, 0, cq.FDReader, 1), message(cq.StepDone, 0, 0, 1), uint16(1))
	f.Add(message(cq.StepOffer, 0, cq.FDReader|cq.FDLane, 1), []byte{1, 2, 3}, uint16(3))
	f.Add(message(cq.StepOffer, 7, 0, 1), []byte{}, uint16(0))
	f.Add(make([]byte, 200), make([]byte, 64), uint16(0x1ff))
	o := cq.Options{Size: 8, MaxLanes: 2, Trust: trust}
	if trust == cq.CrossUser {
		o.Allow = bothUsers()
	} else {
		join(f, anonymous(f, o)) // keeps the bell of this process, which every queue uses
	}
	f.Fuzz(func(t *testing.T, first, second []byte, which uint16) {
		q := anonymous(t, o)
		mine := lane(t, q, 1, 8, 0)
		if trust == cq.CrossUser {
			must(t, mine.Seal(shm.SealOthers))
		} else {
			must(t, mine.Seal(shm.SealShrink|shm.SealGrow|shm.SealSeal))
		}
		pool := []int{cq.ReaderFD(q), mine.FD(), 0}
		uuid := cq.QueueUUID(q)
		for _, m := range [][]byte{first, second} { // or no message would be about this queue
			if len(m) >= 48 && which&(1<<15) == 0 {
				copy(m[32:48], uuid[:])
			}
		}
		for _, side := range []string{"accept", "attach"} {
			meetAny(t, q, side, [][]byte{first, second}, which, pool)
		}
	})
}

// meetAny sends what a fuzzer gave to one side of a rendezvous, descriptors of the pool with it.
func meetAny(t *testing.T, q *cq.Queue, side string, messages [][]byte, which uint16, pool []int) {
	t.Helper()
	a, b := shmtest.Connected(t, unix.SOCK_STREAM)
	for i, m := range messages {
		if len(m) == 0 {
			continue
		}
		var fds []int
		for bit, fd := range pool {
			if which>>(3*i+bit)&1 != 0 {
				fds = append(fds, fd)
			}
		}
		must(t, shm.SendFDs(b, m, fds...))
	}
	must(t, b.CloseWrite())
	before := len(openFiles())
	if side == "accept" {
		if q.Accept(soon(t), a) == nil {
			return
		}
	} else {
		o := cq.WriterOptions{Trust: q.Options().Trust}
		if w, err := cq.Attach(soon(t), cq.Over(a), o); err == nil {
			must(t, w.Close())
		}
	}
	now := len(openFiles())
	for end := time.Now().Add(time.Minute); now != before && time.Now().Before(end); {
		time.Sleep(time.Millisecond) // who watches a peer lets go of it in a goroutine
		now = len(openFiles())
	}
	if now != before {
		t.Errorf("%s: %d descriptors open, %d before", side, now, before)
	}
}
