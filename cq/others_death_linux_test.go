package cq_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

func init() { roles["other reader"] = childOtherReader }

// childOtherReader reads until its input ends.
func childOtherReader() {
	q, err := cq.Create(cq.Unnamed("q"), cq.Options{Size: 8, Trust: cq.CrossUser,
		Allow: &shm.AllowList{UIDs: []int{0}}})
	need(err)
	need(q.Accept(context.Background(), dialParent()))
	say("accepted")
	var line string
	_, _ = fmt.Scanln(&line)
	need(q.Close())
	say("closed")
	_, _ = fmt.Scanln(&line)
}

// TestOthersReaderDies: its writers are told by their posts, once it is proved.
func TestOthersReaderDies(t *testing.T) {
	shmtest.Conforms(t)
	c := startOther(t, "other reader")
	w, err := cq.Attach(soon(t), cq.Over(c.conn),
		cq.WriterOptions{Trust: cq.CrossUser, Allow: bothUsers()})
	must(t, err)
	if got := c.line(t); got != "accepted" {
		t.Fatal(got)
	}
	must(t, c.conn.Close()) // the writer has its own
	must(t, w.Post(&cq.Entry{}))
	must(t, c.Process.Signal(syscall.SIGSTOP))
	select {
	case <-w.ReaderGone():
		t.Fatal("a stopped reader is gone")
	case <-time.After(short):
	}
	must(t, w.Post(&cq.Entry{}))
	c.kill()
	<-w.ReaderGone()
	wantErr(t, "post", w.Post(&cq.Entry{}), cq.ErrPeerGone, syscall.ECONNRESET)
	_, err = w.PostBatch(make([]cq.Entry, 2))
	wantErr(t, "batch", err, cq.ErrPeerGone)
	wantErr(t, "credit", w.Credits().Add(1), cq.ErrPeerGone)
	must(t, w.Close())
}

// TestOthersReaderCloses: that is no death.
func TestOthersReaderCloses(t *testing.T) {
	c := startOther(t, "other reader")
	w, err := cq.Attach(soon(t), cq.Over(c.conn),
		cq.WriterOptions{Trust: cq.CrossUser, Allow: bothUsers()})
	must(t, err)
	_ = c.line(t)
	_, err = fmt.Fprintln(c.in, "close")
	must(t, err)
	if got := c.line(t); got != "closed" {
		t.Fatal(got)
	}
	wantErr(t, "post", w.Post(&cq.Entry{}), cq.ErrClosed)
	must(t, w.Close())
	if w.ReaderGone() == nil {
		t.Error("no channel")
	}
}

// TestOthersNotAllowed: users that are not on the list are refused by either side, before anything
// is given to them; groups count, supplementary ones too.
func TestOthersNotAllowed(t *testing.T) {
	shmtest.Conforms(t)
	q, err := cq.Create(cq.Unnamed("q"), cq.Options{Trust: cq.CrossUser})
	must(t, err)
	t.Cleanup(func() { must(t, q.Close()) })
	c := startOther(t, othersSite.writerRole())
	before := len(openFiles())
	wantErr(t, "accept", q.Accept(soon(t), c.conn), shm.ErrOwner, syscall.EPERM)
	noMoreFiles(t, before)
	c = startOther(t, "other reader")
	_, err = cq.Attach(soon(t), cq.Over(c.conn), cq.WriterOptions{Trust: cq.CrossUser})
	wantErr(t, "attach", err, shm.ErrOwner)
	c = startOther(t, "other reader")
	w, err := cq.Attach(soon(t), cq.Over(c.conn), cq.WriterOptions{Trust: cq.CrossUser,
		Allow: &shm.AllowList{GIDs: []int{nobody}}})
	must(t, err)
	must(t, w.Close())
}

// TestOthersTrustFits: both sides must mean the same kind of trust.
func TestOthersTrustFits(t *testing.T) {
	for _, here := range []cq.Trust{cq.SameUser, cq.CrossUser} {
		q := anonymous(t, cq.Options{Trust: here})
		a, b := connect(t, unix.SOCK_STREAM)
		done := accept(soon(t), q, a)
		_, err := cq.Attach(soon(t), cq.Over(b), cq.WriterOptions{Trust: cq.CrossUser - here})
		wantErr(t, "attach", err, cq.ErrInvalid)
		wantErr(t, "accept", <-done, cq.ErrInvalid)
	}
	d := openDir(t)
	_, err := cq.Create(cq.Named(d, "named"), cq.Options{Trust: cq.CrossUser})
	wantErr(t, "with a name", err, errors.ErrUnsupported)
	_, err = cq.Create(cq.Unnamed("q"), cq.Options{Trust: cq.CrossUser, MaxLanes: 127})
	wantErr(t, "lanes", err, cq.ErrInvalid)
	_, err = cq.Create(cq.Unnamed("q"), cq.Options{Trust: cq.CrossUser, Lifetime: cq.Persistent})
	wantErr(t, "lifetime", err, cq.ErrInvalid)
}

// TestOneConnection: several rendezvous follow one another on one connection of either kind, whose
// bytes nobody else takes while the earlier ones watch it.
func TestOneConnection(t *testing.T) {
	shmtest.Conforms(t)
	for _, at := range []site{memfdSite, othersSite} {
		for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_SEQPACKET} {
			t.Run(fmt.Sprint(at, kind), func(t *testing.T) {
				q, back := at.create(t, cq.Options{Size: 8}), at.create(t, cq.Options{Size: 8})
				a, b := connect(t, kind)
				var ws []*cq.Writer
				for i := range 6 {
					from, conns := q, [2]*net.UnixConn{a, b}
					if i%3 == 2 {
						from, conns = back, [2]*net.UnixConn{b, a} // the other way round
					}
					w, err := meet(t, from, conns[0], conns[1])
					must(t, err)
					ws = append(ws, w)
				}
				must(t, errors.Join(a.Close(), b.Close()))
				for i, w := range ws {
					post(t, w, uint64(i), uint64(i)+1)
					must(t, w.Close())
				}
				got := append(drain(t, q), drain(t, back)...)
				slices.Sort(got)
				if !slices.Equal(got, upTo(0, 6)) {
					t.Error(got)
				}
			})
		}
	}
}

func init() {
	roles["splitting writer"], roles["splitting reader"] = childSplittingWriter, childSplittingReader
	roles["heir"] = func() { time.Sleep(time.Hour) }
}

// split is how a process gets a child that may outlive it.
type split string

const (
	forks   split = "fork"             // the child has all descriptors
	execs   split = "exec"             // a program that has none of the library's
	bequest split = "exec with a gift" // a program that was given the connection
)

// inherits reports whether the child has the end of the connection.
func (s split) inherits() bool { return s != execs }

// rounds says whether the child ends first, and whether it does in the next round.
func (s split) rounds() []bool {
	if s == forks {
		return []bool{true, false}
	}
	return []bool{false}
}

// makes makes the child, which does nothing, and says its number.
func (s split) makes(conn *net.UnixConn) {
	if s == forks {
		pid, err := shmtest.Fork()
		need(err)
		say("child %d", pid)
		return
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "SHMRING_TEST_ROLE=heir")
	if s == bequest {
		f, err := conn.File()
		need(err)
		defer f.Close()
		cmd.ExtraFiles = []*os.File{f}
	}
	need(cmd.Start())
	say("child %d", cmd.Process.Pid)
}

func childSplittingWriter() {
	conn := dialParent()
	w, err := cq.Attach(context.Background(), cq.Over(conn),
		cq.WriterOptions{Trust: cq.CrossUser, Allow: &shm.AllowList{UIDs: []int{0}}})
	need(err)
	split(os.Getenv(envKind)).makes(conn)
	need(conn.Close())
	obeys(w)
}

func childSplittingReader() {
	q, err := cq.Create(cq.Unnamed("split"), cq.Options{Size: 8, Trust: cq.CrossUser,
		Allow: &shm.AllowList{UIDs: []int{0}}})
	need(err)
	conn := dialParent()
	need(q.Accept(context.Background(), conn))
	split(os.Getenv(envKind)).makes(conn)
	need(conn.Close())
	untilTold()
}

// heir is the child of a child.
func (o *other) heir(t *testing.T) (end func()) {
	t.Helper()
	var pid int
	if _, err := fmt.Sscanf(o.line(t), "child %d", &pid); err != nil {
		t.Fatal(err)
	}
	p, err := os.FindProcess(pid)
	must(t, err)
	// Once, since the number may be another one's afterwards.
	end = sync.OnceFunc(func() { _, _ = p.Kill(), p.Release() })
	t.Cleanup(end)
	return end
}

// TestOthersWriterSplits: a writer of another user that has a child is dead when it has ended and
// nobody has its end of the connection. Until then nobody is told, and nobody gets its lane; a
// child that ends is no death, and one that was only started by it means nothing.
func TestOthersWriterSplits(t *testing.T) {
	shmtest.Long(t)
	for _, s := range []split{forks, execs, bequest} {
		t.Run(string(s), func(t *testing.T) {
			q := anonymousOthers(t, cq.Options{Size: 8, MaxLanes: 1})
			e := eventsFor(t, q, cq.EventOptions{})
			begin := uint64(0)
			for _, childFirst := range s.rounds() {
				o := startOther(t, "splitting writer", envKind+"="+string(s))
				must(t, q.Accept(soon(t), o.conn))
				must(t, o.conn.Close())
				end := o.heir(t)
				j := &toldWriter{child: o.child}
				j.begin(t)
				j.post(t, begin, begin+2)
				if childFirst {
					end()
					noNews(t, e)
					noRoom(t, "beside one whose child has ended", othersSite, q)
				}
				j.post(t, begin+2, begin+3)
				o.kill()
				if !childFirst && s.inherits() {
					noNews(t, e)
					noRoom(t, "while a child has the connection", othersSite, q)
					end()
				}
				wantDeath(t, e, q.FID(), cq.PeerWriter, o.Process.Pid)
				if got := drain(t, q); !slices.Equal(got, upTo(begin, begin+3)) {
					t.Errorf("read %v from %d on", got, begin)
				}
				begin += 3
				end()
			}
			must(t, join(t, q).Post(&cq.Entry{Context: begin}))
			if got := drain(t, q); !slices.Equal(got, upTo(begin, begin+1)) {
				t.Errorf("read %v of the next one", got)
			}
		})
	}
}

// TestOthersReaderSplits: likewise with a reader. As long as its death is not proved, nobody goes
// on in its place, and what is posted waits.
func TestOthersReaderSplits(t *testing.T) {
	shmtest.Long(t)
	for _, s := range []split{forks, execs, bequest} {
		t.Run(string(s), func(t *testing.T) {
			_, e := createEvents(t, cq.EventOptions{})
			for _, childFirst := range s.rounds() {
				o := startOther(t, "splitting reader", envKind+"="+string(s))
				w, err := cq.Attach(soon(t), cq.Over(o.conn),
					cq.WriterOptions{Trust: cq.CrossUser, Allow: bothUsers()})
				must(t, err)
				must(t, o.conn.Close())
				must(t, w.BindEvents(e))
				end := o.heir(t)
				post(t, w, 0, 2)
				if childFirst {
					end()
					noNews(t, e)
				}
				post(t, w, 2, 3)
				o.kill()
				if !childFirst && s.inherits() {
					noNews(t, e)
					a, _ := connect(t, unix.SOCK_STREAM)
					_, err := w.Follow(soon(t), a)
					wantErr(t, "follow another one", err, syscall.EBUSY)
					post(t, w, 3, 8)
					wantErr(t, "a full lane", w.Post(&cq.Entry{}), cq.ErrFull)
					end()
				}
				_, p := nextPeer(t, e)
				if p.Role != cq.PeerReader || p.PID != o.Process.Pid || p.End != w.Next() {
					t.Errorf("%+v", p)
				}
				if err := w.Post(&cq.Entry{}); !errors.Is(err, cq.ErrPeerGone) {
					t.Errorf("post: %v", err)
				}
				must(t, errors.Join(w.BindEvents(nil), w.Close()))
				end()
			}
		})
	}
}
