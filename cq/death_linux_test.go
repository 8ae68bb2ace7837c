package cq_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// mortals are where a writer may die, and whether that gives no notice.
var mortals = map[string]struct {
	at        site
	elsewhere bool
}{
	"named":                        {namedSite, false},
	"named, other PID namespace":   {namedSite, true},
	"without a name":               {memfdSite, false},
	"no name, other PID namespace": {memfdSite, true},
	"other user":                   {othersSite, false},
}

// ways are how one waits for a queue.
var ways = map[string]cq.Options{"read": {}, "read beside a descriptor": {Wait: cq.WaitFD},
	"shared": {Shared: true}, "descriptor": {Wait: cq.WaitFD}, "set": {}, "set's descriptor": {},
	"channel": {}}

// TestDeathWakes: a writer that died between publishing and ringing leaves nobody asleep, wherever
// it was and in whatever way one waits, and its lane goes to the next.
func TestDeathWakes(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	for where, m := range mortals {
		for way, o := range ways {
			t.Run(where+", "+way, func(t *testing.T) {
				t.Parallel()
				var attr *syscall.SysProcAttr
				if m.elsewhere {
					attr = ownPIDs(t)
				}
				o.Size, o.Spin = 8, -1
				q := m.at.create(t, o)
				w := startWriter(t, m.at, q, attr)
				w.post(t, 0, 1)
				eventually(t, "the first entry", func() bool { return len(drain(t, q)) == 1 })
				fd, wait := sleeper(t, way, q)
				var got []uint64
				done := make(chan error, 1)
				go func() {
					var err error
					got, err = wait()
					done <- err
				}()
				time.Sleep(short) // long enough to be asleep, mostly
				w.publish(t, 1, 77)
				if fd >= 0 && !m.elsewhere && readable(t, fd, 20) {
					t.Error("readable before its death")
				}
				w.kill()
				must(t, <-done)
				eventually(t, "the entry, and what was its memory is gone", func() bool {
					got = append(got, drain(t, q)...)
					return len(got) > 0 && (!m.at.others || q.Stats().Retired == 1)
				})
				wantContexts(t, "read", got, 77)
				if w := m.at.attach(t, q); w.Lane() != 1 || w.Next() != 2 {
					t.Errorf("the next one goes on in lane %d at %d", w.Lane(), w.Next())
				}
			})
		}
	}
}

// sleeper returns a wait that ends when an entry may be there, with what it reads if it is a read,
// and the descriptor that it polls, or -1.
func sleeper(t *testing.T, way string, q *cq.Queue) (fd int, wait func() ([]uint64, error)) {
	t.Helper()
	polls := func(o interface {
		TryWait() error
		GetWait() (cq.Native, error)
	}) (int, func() ([]uint64, error)) {
		eventually(t, "there is nothing", func() bool { drain(t, q); return o.TryWait() == nil })
		fd := waitFD(o)
		return fd, func() ([]uint64, error) {
			for once := true; once || o.TryWait() == nil; once = false {
				if !readable(t, fd, 60_000) {
					return nil, cq.ErrTimedOut
				}
			}
			return nil, nil
		}
	}
	ctx := soon(t)
	switch way {
	case "descriptor":
		return polls(q)
	case "set's descriptor":
		s := waitSet(t, openDir(t), cq.WaitSetOptions{Wait: cq.WaitFD})
		addTo(t, s, q)
		return polls(s)
	case "set":
		s := waitSet(t, openDir(t), cq.WaitSetOptions{})
		addTo(t, s, q)
		return -1, func() ([]uint64, error) {
			_, err := s.Wait(ctx, make([]cq.Waitable, 1), cq.WaitOptions{})
			return nil, err
		}
	case "channel":
		c := channel(t, openDir(t))
		attachTo(t, c, q)
		must(t, c.RequestNotify(q, cq.NotifyAny))
		return -1, func() ([]uint64, error) {
			_, err := c.GetEvent(ctx, cq.WaitOptions{})
			return nil, errors.Join(err, c.Ack(q, 1))
		}
	}
	return -1, func() ([]uint64, error) {
		es := make([]cq.Context, 2)
		n, err := cq.ReadContext(ctx, q, es, cq.ReadOptions{})
		return contexts(es[:n]), err
	}
}

// noRoom checks that no writer can attach to a queue with one lane.
func noRoom(t *testing.T, what string, at site, q *cq.Queue) {
	t.Helper()
	_, err := at.tryAttach(t, q)
	wantErr(t, what, err, cq.ErrLanes)
}

// TestKilledWriter: what it published is read, and the next one goes on in its lane, also in front
// of what nobody has read yet; one that is stopped has its lane. The lane of another user is
// unmapped as soon as it was read, and the next one brings memory of its own; while nobody has
// proved the death there is no room.
func TestKilledWriter(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	for where, m := range mortals {
		t.Run(where, func(t *testing.T) {
			var attr *syscall.SysProcAttr
			if m.elsewhere {
				attr = ownPIDs(t)
			}
			q := m.at.create(t, cq.Options{Size: 16, MaxLanes: 1, Spin: -1})
			var fds, maps int
			var got []uint64
			for i := range uint64(4) {
				w := startWriter(t, m.at, q, attr)
				if w.next != 4*i || w.lane != 1 {
					t.Errorf("writer %d begins at %d in lane %d", i, w.next, w.lane)
				}
				w.post(t, 4*i, 4*i+4)
				noRoom(t, "with a living writer", m.at, q)
				must(t, w.Process.Signal(syscall.SIGSTOP))
				time.Sleep(short)
				noRoom(t, "with a stopped writer", m.at, q)
				w.kill()
				if !m.at.others {
					continue
				}
				eventually(t, "its memory is gone", func() bool { // a sleep ends, or a look finds it
					dst := make([]cq.Context, 2)
					n, err := sread(q, dst, time.Millisecond)
					if err != nil && !errors.Is(err, cq.ErrTimedOut) {
						t.Fatal(err)
					}
					got = append(got, contexts(dst[:n])...)
					return q.Stats().Retired == i+1
				})
				if i == 0 {
					fds, maps = held(t)
				} else {
					eventually(t, "nothing more is held than after the first", func() bool {
						f, m := held(t) // who watches a peer lets go of it in a goroutine
						return f <= fds+1 && m <= maps
					})
				}
			}
			wantContexts(t, "read", append(got, drain(t, q)...), upTo(0, 16)...)
		})
	}
}

// TestDestroyedHalfway: a reader that died while it destroyed its queue leaves one that nobody can
// use any more, and that makes way for a new one, persistent or not.
func TestDestroyedHalfway(t *testing.T) {
	t.Parallel()
	for _, lifetime := range []string{"0", "1"} {
		d := openDir(t)
		name := queueName(t) + lifetime
		killedCreator(t, name, lifetime)
		words := scribble(t, d, name, cq.ReaderFile).section(t, cq.SectQueue, 0)
		poke(words, cq.OffState, kind.StateClosed)
		use := users(t, d, name)
		for _, what := range []string{"adopt", "attach"} {
			wantErr(t, what, use[what](), cq.ErrClosed, os.ErrClosed)
		}
		q, err := cq.Open(cq.Named(d, name), cq.Options{})
		if err != nil {
			_ = os.RemoveAll(d.Path() + "/" + name)
			t.Fatal(err)
		}
		must(t, q.Close())
		nothingLeft(t, d)
	}
}

// TestDeathOfSuccessor: the second writer of a lane that the reader never parked between the two is
// watched as the first one was.
func TestDeathOfSuccessor(t *testing.T) {
	t.Parallel()
	_, q := create(t, cq.Options{Size: 8, Spin: -1})
	first := startWriter(t, namedSite, q, nil)
	first.post(t, 0, 1)
	for got := 0; got < 1; { // from here on the lane is hot
		got += len(drain(t, q))
	}
	first.kill()
	second := startWriter(t, namedSite, q, nil)
	if second.lane != 1 {
		t.Fatal(second.lane)
	}
	_ = drain(t, q)
	for range 2 { // what woke up for the two is looked at
		_, _ = sread(q, make([]cq.Msg, 1), 20*time.Millisecond)
	}
	defer whenAsleep(t, q, func() {
		second.publish(t, 1, 77)
		second.kill()
	})()
	dst := make([]cq.Context, 2)
	if n, err := sread(q, dst, time.Minute); n != 1 || dst[0].Context != 77 {
		t.Errorf("%d, %v, %v", n, err, dst)
	}
}

// TestDeadBellManyNames: a bell that its process left in several directories goes from each of them
// as soon as somebody has a set for it, or puts a queue of it into one.
func TestDeadBellManyNames(t *testing.T) {
	one := openDir(t)
	dirs := []*shm.Dir{one}
	for range 2 {
		path, err := os.MkdirTemp(filepath.Dir(one.Path()), "shmring-more-")
		must(t, err)
		t.Cleanup(func() { must(t, os.RemoveAll(path)) })
		d, err := shm.OpenDir(path)
		must(t, err)
		t.Cleanup(func() { must(t, d.Close()) })
		dirs = append(dirs, d)
	}
	spec := cq.BellSpec()
	spec.UUID = shm.NewUUID()
	name := "bell-" + spec.UUID.String()
	obj, err := one.Create(name, spec, nil)
	must(t, err)
	for _, d := range dirs[1:] {
		must(t, obj.LinkTo(d, name))
	}
	must(t, obj.Release())
	must(t, obj.Close())

	for _, d := range dirs[:2] {
		s, err := cq.NewWaitSet(d, cq.WaitSetOptions{})
		must(t, err)
		must(t, s.Close())
	}
	s := waitSet(t, one, cq.WaitSetOptions{})
	q, err := cq.Create(cq.Named(dirs[2], "q"), cq.Options{})
	must(t, err)
	must(t, s.Add(q))
	must(t, s.Remove(q))
	must(t, q.Close())
	for i, d := range dirs {
		names, err := d.List()
		must(t, err)
		for _, n := range names {
			if strings.Contains(n.Name, spec.UUID.String()) {
				t.Errorf("directory %d still has %s", i, n.Name)
			}
		}
	}
}

// TestBellGoesWithoutDescriptors: a process that has no descriptor left takes its bell away.
func TestBellGoesWithoutDescriptors(t *testing.T) {
	d := openDir(t)
	bells := func() (n int) {
		names, err := d.List()
		must(t, err)
		for _, name := range names {
			if strings.HasPrefix(name.Name, "bell-") {
				n++
			}
		}
		return n
	}
	before := bells()
	s, err := cq.NewWaitSet(d, cq.WaitSetOptions{})
	must(t, err)
	var limit unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Max: limit.Max}))
	err = s.Close()
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
	if n := bells(); err != nil || n != before {
		t.Errorf("%d bells, before there were %d; %v", n, before, err)
	}
}
