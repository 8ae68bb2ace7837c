package cq_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// nobody is the user of the other process; its group is the same number.
const nobody = shmtest.Other

// bothUsers allows this process's user and the other one.
func bothUsers() *shm.AllowList { return &shm.AllowList{UIDs: []int{os.Geteuid(), nobody}} }

// anonymousOthers makes a queue for other users and closes it when the test ends.
func anonymousOthers(t testing.TB, o cq.Options) *cq.Queue {
	t.Helper()
	o.Trust, o.Allow = cq.CrossUser, bothUsers()
	return anonymous(t, o)
}

// openTempDir is a directory that every user may enter.
func openTempDir(t testing.TB) string {
	t.Helper()
	dir := shmtest.Got(os.MkdirTemp("", "others")).Or(t)
	t.Cleanup(func() { os.RemoveAll(dir) })
	must(t, os.Chmod(dir, 0o755))
	return dir
}

// startOther starts a process of another user that has a connection to this one, made by the child,
// so that the kernel names that.
func startOther(t testing.TB, role string, args ...string) (*child, *net.UnixConn) {
	t.Helper()
	l := listen(t)
	defer l.Close()
	cmd := shmtest.Child(t, role, append(args, "SOCKET="+l.Addr().String())...)
	shmtest.AsOther(t, cmd)
	c := start(t, cmd)
	must(t, l.SetDeadline(time.Now().Add(time.Minute)))
	return c, shmtest.Have(l.AcceptUnix()).In(t)
}

// listen listens at a socket that every user may connect to.
func listen(t testing.TB) *net.UnixListener {
	t.Helper()
	path := filepath.Join(openTempDir(t), "s")
	l := shmtest.Have(net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})).In(t)
	must(t, os.Chmod(path, 0o666))
	return l
}

// dial connects to it.
func dial(t testing.TB, l *net.UnixListener) *net.UnixConn {
	t.Helper()
	return shmtest.Have(net.DialUnix("unix", nil, l.Addr().(*net.UnixAddr))).In(t)
}

func dialParent() *net.UnixConn {
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: os.Getenv("SOCKET"), Net: "unix"})
	need(err)
	return c
}

// rowComesFree reads until the one writer that has ended has no lane any more.
func rowComesFree(t testing.TB, q *cq.Queue) {
	t.Helper()
	eventually(t, "the row is free", func() bool {
		_, _ = cq.Read(q, make([]cq.Context, 1))
		return q.Stats().Retired == 1
	})
}

// othersMessage is a message of a rendezvous between users.
func othersMessage(step uint16, fds, row uint32, queue shm.UUID) []byte {
	b := cq.RendezvousMessage(step, 0, fds, row, queue)
	b[48] = byte(cq.CrossUser)
	return b
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
	must(t, ahead.Seal(shm.SealOthers))
	made := func(row, capacity int, seals shm.Seals) []int {
		return []int{lane(t, q, row, capacity, seals).FD()}
	}
	foreign := lane(t, anonymous(t, cq.Options{}), 1, size, shm.SealOthers)
	const old = shm.SealShrink | shm.SealGrow | shm.SealSeal
	for name, tt := range map[string]hostileWriter{
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
	next := join(t, q) // the row is not lost
	post(t, next, 0, 8)
	if got := drain(t, q); len(got) != 8 {
		t.Error(got)
	}
}

// TestOthersLarge: nobody makes another user map more than that one allows, be it by large lanes or
// by a reader that is large whatever the size of its lanes.
func TestOthersLarge(t *testing.T) {
	for what, tt := range map[string]struct {
		o    cq.Options
		most uint64
	}{
		"lane":   {cq.Options{Size: 1 << 12}, 1 << 16},
		"reader": {cq.Options{Size: 8, MaxLanes: 120}, 24 << 10},
	} {
		t.Run(what, func(t *testing.T) {
			bothRefuse(t, anonymousOthers(t, tt.o), cq.WriterOptions{Trust: cq.CrossUser,
				MaxBytes: tt.most}, shm.ErrNoSpace)
		})
	}
}

// TestFollowForbids: a reader that cannot tell the writer so does not take a lane that comes with
// entries: the writer gives them to somebody else.
func TestFollowForbids(t *testing.T) {
	shmtest.Conforms(t)
	const size = 8
	q := anonymousOthers(t, cq.Options{Size: size, MaxLanes: 1})
	for range 3 {
		full := lane(t, q, 1, size, 0)
		poke(scribbler{full}.section(t, cq.SectLane, 1), 0, size)
		must(t, full.Seal(shm.SealOthers))
		reader, writer := shmtest.Connected(t, unix.SOCK_STREAM)
		done := accept(soon(t), q, reader)
		must(t, shm.SendFDs(writer, othersMessage(cq.StepAsk, 0, 0, shm.UUID{})))
		_, fds := receive(t, writer)
		shm.CloseFDs(fds)
		must(t, writer.CloseRead()) // it gave up
		must(t, shm.SendFDs(writer, othersMessage(cq.StepLane, cq.FDLane, 1, cq.QueueUUID(q)),
			full.FD()))
		wantErr(t, "accept", <-done, cq.ErrPeerGone)
		if _, err := sread(q, make([]cq.Context, 1), short); !errors.Is(err, cq.ErrTimedOut) {
			t.Errorf("read: %v", err)
		}
	}
	w := join(t, q)
	post(t, w, 0, 3)
	wantContexts(t, "drained", drain(t, q), upTo(0, 3)...)
}

func init() {
	createUnnamed = func(t testing.TB, o cq.Options) *cq.Queue {
		return anonymous(t, siteOf(t).queue(o))
	}
	attachUnnamed = join
}

// siteOf says which kind of queue without a name a repeated test makes.
func siteOf(t testing.TB) site {
	return site{memfd: true, others: strings.HasPrefix(t.Name(), "TestForOthers/")}
}

// TestWithoutName repeats tests with queues that have no name; create and attach make them below
// this one.
func TestWithoutName(t *testing.T) {
	shmtest.Long(t)
	for name, test := range repeated() {
		t.Run(name, test)
	}
}

// TestForOthers repeats them with queues for other users, but for what is about options that those
// do not have, and about a writer that goes on in another one's lane.
func TestForOthers(t *testing.T) {
	shmtest.Conforms(t)
	shmtest.Long(t)
	tests := repeated()
	delete(tests, "options")
	delete(tests, "overrun final")
	for name, test := range tests {
		t.Run(name, test)
	}
}

func repeated() map[string]func(*testing.T) {
	return map[string]func(*testing.T){
		"batch":            TestPostBatch,
		"close ends waits": TestCloseEndsWaits,
		"close waits":      TestCloseWaits,
		"credit":           TestCredits,
		"credits":          TestCreditsNeverFail,
		"many lanes":       TestManyLanes,
		"memory":           TestMemory,
		"marks":            TestMarks,
		"no allocation":    allocatesNothing,
		"options":          resolvesOptions,
		"overrun final":    TestOverrunIsFinal,
		"overrun nothing":  TestNothingAfterOverrun,
		"overrun wakes":    TestOverrunWakes,
		"overrun wait":     TestThresholdOverrun,
		"peek":             TestPeekRelease,
		"peek error":       TestPeekStopsAtError,
		"peek wrap":        TestPeekWrap,
		"refused close":    TestRefusedCloseDisturbsNobody,
		"reserve":          TestReserveCommit,
		"shared":           TestShared,
		"threshold part":   TestThresholdPart,
	}
}

func init() { roles["silent user"] = childSilentUser }

// childSilentUser holds connections in which it says nothing, or asks for a lane and brings none.
// For each that is closed it makes another one.
func childSilentUser() {
	ask := othersMessage(cq.StepAsk, 0, 0, shm.UUID{})
	count := number(envCount, 1)
	var ready sync.WaitGroup
	ready.Add(count)
	for i := range count {
		go func() {
			for first := true; ; first = false {
				c := dialParent()
				if i%2 == 0 {
					_ = shm.SendFDs(c, ask)
				}
				if first {
					ready.Done()
				}
				for err := error(nil); err == nil; {
					_, err = c.Read(make([]byte, 64))
				}
				c.Close()
			}
		}()
	}
	ready.Wait()
	say("ready")
	toldToStop()
	select {}
}

// serveOthers serves a queue at a socket that every user may connect to.
func serveOthers(t *testing.T, q *cq.Queue, report func(error)) *net.UnixListener {
	t.Helper()
	l := listen(t)
	served := make(chan error)
	go func() { served <- q.Serve(l, report) }()
	t.Cleanup(func() {
		must(t, l.Close())
		wantErr(t, "serve", <-served, net.ErrClosed)
	})
	return l
}

// TestServeSilentUser: a user who holds more connections than are served, silent or half way, and
// comes again with each that is closed, keeps neither the places nor the rows from others.
func TestServeSilentUser(t *testing.T) {
	shmtest.Conforms(t)
	const lanes, kept = 8, 2 // which one user may keep from others
	q := anonymousOthers(t, cq.Options{Size: 8, MaxLanes: lanes})
	connections := cq.Serving(q)
	var mu sync.Mutex
	reports := map[string]int{}
	l := serveOthers(t, q, func(err error) {
		mu.Lock()
		defer mu.Unlock()
		reports[reason(err)]++
	})
	cmd := shmtest.Child(t, "silent user", "SOCKET="+l.Addr().String(), envCount+"=60")
	shmtest.AsOther(t, cmd)
	c := start(t, cmd)
	c.Says(t, "ready")
	if connections >= 60 {
		t.Fatalf("%d connections are served", connections)
	}
	eventually(t, "half meetings", func() bool { return cq.RowsOffered(q) >= kept })
	var ws []*cq.Writer
	for range lanes - kept {
		conn := dial(t, l)
		w, err := cq.Attach(soon(t), cq.Over(conn), cq.WriterOptions{Trust: cq.CrossUser})
		must(t, errors.Join(err, conn.Close()))
		ws = append(ws, w)
	}
	for i, w := range ws {
		post(t, w, uint64(i), uint64(i)+1)
	}
	got := 0
	eventually(t, "all are read", func() bool { // the reader knows a lane after its writer does
		got += len(drain(t, q))
		return got == len(ws)
	})
	c.Kill()
	for _, w := range ws {
		must(t, w.Close())
	}
	mu.Lock()
	defer mu.Unlock()
	if reports["busy"] == 0 {
		t.Errorf("nobody was refused or put out: %v", reports)
	}
}

// reason sorts what Serve reports.
func reason(err error) string {
	switch {
	case errors.Is(err, cq.ErrBusy) && errors.Is(err, syscall.EBUSY):
		return "busy"
	case errors.Is(err, cq.ErrPeerGone):
		return "gone"
	}
	return err.Error()
}

// TestUserLanes: one user does not get all lanes, however it tries, and gets its own again.
func TestUserLanes(t *testing.T) {
	shmtest.Conforms(t)
	if _, err := cq.Create(cq.Unnamed("x"), cq.Options{UserLanes: -1}); !errors.Is(err,
		cq.ErrInvalid) {
		t.Error(err)
	}
	q := anonymousOthers(t, cq.Options{Size: 8, Spin: -1, MaxLanes: 3, UserLanes: 2})
	attach := func() (*cq.Writer, error) {
		a, b := shmtest.Connected(t, unix.SOCK_STREAM)
		defer a.Close()
		defer b.Close()
		done := accept(soon(t), q, a)
		w, err := cq.Attach(soon(t), cq.Over(b), cq.WriterOptions{Trust: cq.CrossUser})
		if e := <-done; (e == nil) != (err == nil) || e != nil && !errors.Is(e, cq.ErrLanes) {
			t.Error(e)
		}
		if err == nil { // also where the rest is skipped
			t.Cleanup(func() { must(t, w.Close()) })
		}
		return w, err
	}
	first := shmtest.Got(attach()).Or(t)
	second := shmtest.Got(attach()).Or(t)
	_, err := attach()
	wantErr(t, "third", err, cq.ErrLanes, syscall.ECONNREFUSED)
	nobodys := startWriter(t, othersSite, q, nil)
	post(t, first, 0, 1)
	nobodys.post(t, 1, 2)
	if got := drain(t, q); len(got) != 2 {
		t.Error(got)
	}
	must(t, first.Close())
	rowComesFree(t, q)
	first = shmtest.Got(attach()).Or(t)
	must(t, errors.Join(first.Close(), second.Close()))
}

// TestUserLanesOfOne: among writers of one's own user there is no such bound.
func TestUserLanesOfOne(t *testing.T) {
	q := anonymous(t, cq.Options{Size: 8, MaxLanes: 2, UserLanes: 1})
	for range 3 {
		w := shmtest.Got(tryJoin(t, q)).Or(t)
		must(t, w.Close())
	}
	join(t, q)
	join(t, q)
}

// TestPoisonedRowIsNotAllotted: the row of a writer that was given up goes to nobody, also where
// its lane could be taken over.
func TestPoisonedRowIsNotAllotted(t *testing.T) {
	q := anonymous(t, cq.Options{Size: 4, MaxLanes: 2})
	bad := join(t, q)
	post(t, bad, 0, 1)
	bad.StoreMeta(0, 0)
	_, err := cq.Read(q, make([]cq.Context, 1))
	wantErr(t, "read", err, cq.ErrCorrupt)
	must(t, bad.Close())
	w := join(t, q)
	if w.Lane() == bad.Lane() {
		t.Errorf("lane %d", w.Lane())
	}
	post(t, w, 5, 6)
	wantContexts(t, "got", read(t, q, 1), upTo(5, 6)...)
}

// TestFollowSolicited: the words about entries that the former reader released say nothing of those
// that it left.
func TestFollowSolicited(t *testing.T) {
	former := anonymousOthers(t, cq.Options{Size: 8})
	c := shmtest.Have(cq.NewChannel(nil)).In(t)
	next := anonymousOthers(t, cq.Options{Size: 8})
	attachTo(t, c, next)
	w := join(t, former)
	must(t, w.Post(&cq.Entry{Meta: cq.MetaSolicited}))
	post(t, w, 1, 4)
	_ = read(t, former, 2)
	must(t, former.Detach())
	<-w.ReaderGone()
	must(t, c.RequestNotify(next, cq.NotifySolicited))
	w = followTo(t, w, next)
	noEvent(t, "a lane whose solicited entry was read", c)
	post(t, w, 4, 5)
	noEvent(t, "plain entries", c)
	must(t, w.Post(&cq.Entry{Context: 5, Meta: cq.MetaSolicited}))
	if ev := gets(t, "a solicited one", c, next); !ev.Solicited {
		t.Errorf("%+v", ev)
	}
	must(t, c.Ack(next, 1))
	wantContexts(t, "got", drain(t, next), upTo(2, 6)...)
}

// TestServeSilentPeer: who connects and says nothing is let go, and so is who stops in the middle.
func TestServeSilentPeer(t *testing.T) {
	defer cq.ShortMeetings(20 * time.Millisecond)()
	ask := cq.RendezvousMessage(cq.StepAsk, 0, 0, 0, shm.UUID{})
	for name, say := range map[string][]byte{"nothing": nil, "half": ask[:40], "the first": ask} {
		t.Run(name, func(t *testing.T) {
			q := anonymous(t, cq.Options{Size: 4})
			l := listen(t)
			refused, served := make(chan error, 1), make(chan error, 1)
			go func() { served <- q.Serve(l, func(err error) { refused <- err }) }()
			c := dial(t, l)
			_, _ = c.Write(say) // if it is not let go before
			select {
			case err := <-refused:
				wantErr(t, "the meeting", err, context.DeadlineExceeded)
			case <-time.After(time.Minute):
				t.Error("it is waited for")
			}
			must(t, l.Close())
			<-served
		})
	}
}

// TestAttachSilentReader: a reader of another user that begins a rendezvous and does not go on is
// waited for no longer than agreed, whatever the caller's context says.
func TestAttachSilentReader(t *testing.T) {
	defer cq.ShortMeetings(20 * time.Millisecond)()
	q := anonymousOthers(t, cq.Options{Size: 4})
	fd := shmtest.Got(cq.ShareReader(q)).Or(t)
	defer shm.CloseFDs([]int{fd})
	a, b := shmtest.Connected(t, unix.SOCK_STREAM)
	must(t, shm.SendFDs(a, othersMessage(cq.StepOffer, cq.FDReader, 1, cq.QueueUUID(q)), fd))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err := cq.Attach(ctx, cq.Over(b), cq.WriterOptions{Trust: cq.CrossUser, Allow: bothUsers()})
	wantErr(t, "attach", err, cq.ErrTimedOut)
}
