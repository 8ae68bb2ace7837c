package cq_test

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// othersMessage is a message of a rendezvous between users.
func othersMessage(step uint16, fds, row uint32, queue shm.UUID) []byte {
	b := cq.RendezvousMessage(step, 0, fds, row, queue)
	b[48] = byte(cq.CrossUser)
	return b
}

// othersWriter is what a writer of another user sends, and how the meeting ends for the reader.
type othersWriter struct {
	first, second []byte
	fds           []int
	want          error
}

func (tt othersWriter) meet(t *testing.T, q *cq.Queue) {
	a, b := connect(t, unix.SOCK_STREAM)
	before := len(openFiles())
	ctx := soon(t)
	if errors.Is(tt.want, context.DeadlineExceeded) {
		soon, cancel := context.WithTimeout(ctx, 10*short)
		defer cancel()
		ctx = soon
	}
	if tt.first != nil {
		must(t, shm.SendFDs(b, tt.first))
	}
	done := accept(ctx, q, a)
	if tt.second != nil {
		n, fds := receive(t, b)
		if n != 64 || len(fds) != 2 { // the reader's object, and the end of a pipe
			t.Errorf("offer of %d bytes with %d descriptors", n, len(fds))
		}
		shm.CloseFDs(fds)
	}
	if len(tt.second) > 0 {
		must(t, shm.SendFDs(b, tt.second, tt.fds...))
	}
	if err := <-done; !errors.Is(err, tt.want) {
		t.Errorf("%v, want %v", err, tt.want)
	}
	noMoreFiles(t, before)
}

// TestOthersHostileMeeting: whatever a writer of another user brings instead of a lane that it
// cannot take back is a typed error, every descriptor is closed, and the row is free.
func TestOthersHostileMeeting(t *testing.T) {
	shmtest.Conforms(t)
	const size = 8
	q := anonymousOthers(t, cq.Options{Size: size, MaxLanes: 1, Wait: cq.WaitFD})
	uuid := cq.QueueUUID(q)
	ask := othersMessage(cq.StepAsk, 0, 0, shm.UUID{})
	bring := othersMessage(cq.StepLane, cq.FDLane, 1, uuid)
	var p [2]int
	must(t, unix.Pipe2(p[:], unix.O_CLOEXEC))
	t.Cleanup(func() { shm.CloseFDs(p[:]) })
	ahead := lane(t, q, 1, size, 0)
	poke(scribbler{ahead}.section(t, cq.SectLane, 1), 0, size+1)
	must(t, ahead.SealForOthers())
	made := func(row, capacity int, seals shm.Seals) []int {
		return []int{lane(t, q, row, capacity, seals).FD()}
	}
	foreign := lane(t, anonymous(t, cq.Options{}), 1, size, shm.SealOthers)
	const old = shm.SealShrink | shm.SealGrow | shm.SealSeal
	for name, tt := range map[string]othersWriter{
		"withheld": {ask, []byte{}, nil, context.DeadlineExceeded},
		"same user's": {cq.RendezvousMessage(cq.StepAsk, 0, 0, 0, shm.UUID{}), nil, nil,
			cq.ErrInvalid},
		"no lane":     {ask, othersMessage(cq.StepLane, 0, 1, uuid), nil, cq.ErrCorrupt},
		"a pipe":      {ask, bring, []int{p[0]}, shm.ErrOwner},
		"unsealed":    {ask, bring, made(1, size, 0), shm.ErrOwner},
		"can write":   {ask, bring, made(1, size, old), shm.ErrOwner},
		"can shrink":  {ask, bring, made(1, size, shm.SealOthers&^shm.SealShrink), shm.ErrOwner},
		"too large":   {ask, bring, made(1, 4*size*64, shm.SealOthers), shm.ErrNoSpace},
		"too small":   {ask, bring, made(1, size/2, shm.SealOthers), cq.ErrCorrupt},
		"another row": {ask, bring, made(2, size, shm.SealOthers), cq.ErrCorrupt},
		"ahead":       {ask, bring, []int{ahead.FD()}, cq.ErrCorrupt},
		"the reader":  {ask, bring, []int{cq.ReaderFD(q)}, shm.ErrNoSpace},
		"other queue": {ask, othersMessage(cq.StepLane, cq.FDLane, 1, shm.NewUUID()),
			[]int{ahead.FD()}, cq.ErrCorrupt},
		"other's lane": {ask, bring, []int{foreign.FD()}, cq.ErrCorrupt},
	} {
		t.Run(name, func(t *testing.T) { tt.meet(t, q) })
	}
	next := joinOthers(t, q) // the row is not lost
	post(t, next, 0, 8)
	if got := drain(t, q); len(got) != 8 {
		t.Error(got)
	}
}

// TestOthersLargeLane: a reader does not make a writer of another user take more memory than that
// allows.
func TestOthersLargeLane(t *testing.T) {
	q := anonymousOthers(t, cq.Options{Size: 1 << 12})
	a, b := connect(t, unix.SOCK_STREAM)
	done := accept(soon(t), q, a)
	_, err := cq.AttachConn(soon(t), b, cq.WriterOptions{Trust: cq.CrossUser, MaxBytes: 1 << 16})
	wantErr(t, "attach", err, shm.ErrNoSpace)
	wantErr(t, "accept", <-done, shm.ErrNoSpace)
}

// TestOthersServe accepts writers of another user that connect.
func TestOthersServe(t *testing.T) {
	q := anonymousOthers(t, cq.Options{Size: 8, Spin: -1})
	path := filepath.Join(openTempDir(t), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	must(t, err)
	defer l.Close()
	served := make(chan error)
	go func() { served <- q.Serve(l, func(err error) { t.Error(err) }) }()
	for i := range uint64(3) {
		c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
		must(t, err)
		w, err := cq.AttachConn(soon(t), c, cq.WriterOptions{Trust: cq.CrossUser})
		must(t, err)
		post(t, w, i, i+1)
		buf := make([]cq.Context, 4)
		if n, err := cq.ReadContext(soon(t), q, buf, cq.ReadOptions{}); n != 1 || buf[0].Context != i {
			t.Error(n, err, buf)
		}
		must(t, errors.Join(w.Close(), c.Close()))
	}
	eventually(t, "lanes are retired", func() bool {
		_, _ = sread(q, make([]cq.Context, 1), time.Millisecond)
		return q.Stats().Retired == 3
	})
	must(t, q.Close())
	wantErr(t, "serve", <-served, cq.ErrClosed)
}
