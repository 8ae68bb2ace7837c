package cq_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

func init() { roles["other user"] = childOtherUser }

// nobody is the user of the other process; its group is the same number.
const nobody = 65534

// asNobody starts a child as another user, without any capability.
func asNobody(t testing.TB) *syscall.SysProcAttr {
	t.Helper()
	if os.Geteuid() != 0 {
		shmtest.Require(t, "root", errors.New("only root starts processes of other users"))
	}
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
}

// bothUsers allows this process's user and the other one.
func bothUsers() *shm.AllowList { return &shm.AllowList{UIDs: []int{os.Geteuid(), nobody}} }

// anonymousOthers makes a queue for other users and closes it when the test ends.
func anonymousOthers(t testing.TB, o cq.Options) *cq.Queue {
	t.Helper()
	o.Trust, o.Allow = cq.CrossUser, bothUsers()
	return anonymous(t, o)
}

// joinOthers attaches a writer of this process to a queue for other users.
func joinOthers(t testing.TB, q *cq.Queue) *cq.Writer {
	t.Helper()
	a, b := connect(t, unix.SOCK_STREAM)
	done := accept(soon(t), q, a)
	w, err := cq.AttachConn(soon(t), b, cq.WriterOptions{Trust: cq.CrossUser})
	must(t, errors.Join(err, <-done))
	must(t, errors.Join(a.Close(), b.Close()))
	t.Cleanup(func() { must(t, w.Close()) })
	return w
}

// openTempDir is a directory that every user may enter.
func openTempDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "others")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	must(t, os.Chmod(dir, 0o755))
	return dir
}

// other is a process of another user that has a connection to this one.
type other struct {
	*child
	conn *net.UnixConn
}

// startOther starts it. The connection is made by the child, so that the kernel names that.
func startOther(t testing.TB, role string, args ...string) *other {
	t.Helper()
	path := filepath.Join(openTempDir(t), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	must(t, err)
	defer l.Close()
	must(t, os.Chmod(path, 0o666))
	cmd := shmtest.Child(t, role, append(args, "SOCKET="+path, "GORACE=atexit_sleep_ms=0")...)
	cmd.SysProcAttr = asNobody(t)
	cmd.Path = "/proc/self/exe" // it lies in a directory that the other user may not enter
	c := start(t, cmd)
	must(t, l.SetDeadline(time.Now().Add(time.Minute)))
	conn, err := l.AcceptUnix()
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	return &other{child: c, conn: conn}
}

func dialParent() *net.UnixConn {
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: os.Getenv("SOCKET"), Net: "unix"})
	need(err)
	return c
}

// childOtherUser attaches a writer and posts what it is told to.
func childOtherUser() {
	w, err := cq.AttachConn(context.Background(), dialParent(),
		cq.WriterOptions{Trust: cq.CrossUser, Allow: &shm.AllowList{UIDs: []int{0}}})
	need(err)
	postsAsTold(w)
}

func postsAsTold(w *cq.Writer) {
	say("lane %d at %d", w.Lane(), w.Next())
	for {
		var from, to uint64
		if _, err := fmt.Scanln(&from, &to); err != nil {
			break
		}
		for ; from < to; from++ {
			need(w.Post(&cq.Entry{Context: from}))
		}
		say("posted")
	}
	need(w.Close())
}

func startWriterOther(t *testing.T, q *cq.Queue) *joiner {
	t.Helper()
	c := startOther(t, "other user")
	must(t, q.Accept(soon(t), c.conn))
	j := &joiner{child: c.child}
	if _, err := fmt.Sscanf(c.line(t), "lane %d at %d", &j.lane, &j.next); err != nil {
		t.Fatal(err)
	}
	must(t, c.conn.Close())
	return j
}

// TestOthersOneProcess: reader and writer of one process, with nothing that both may write.
func TestOthersOneProcess(t *testing.T) {
	t.Parallel()
	q := anonymousOthers(t, cq.Options{Size: 8, Spin: -1})
	if q.Options().Trust != cq.CrossUser || !q.Options().WritersPay {
		t.Errorf("trust %v, options %+v", q.Options().Trust, q.Options())
	}
	w := joinOthers(t, q)
	buf := make([]cq.Context, 4)
	for i := range uint64(50) {
		post(t, w, i, i+1)
		if n, err := cq.ReadContext(soon(t), q, buf, cq.ReadOptions{}); n != 1 || err != nil ||
			buf[0].Context != i {
			t.Fatal(i, n, err, buf)
		}
		done := later(func() { post(t, w, 1000+i, 1001+i) })
		if n, err := cq.ReadContext(soon(t), q, buf, cq.ReadOptions{}); n != 1 || err != nil ||
			buf[0].Context != 1000+i {
			t.Fatal(i, n, err, buf)
		}
		done()
	}
}

// TestOthersProcess: the writer is another user's.
func TestOthersProcess(t *testing.T) {
	q := anonymousOthers(t, cq.Options{Size: 8, Spin: -1})
	ws := []*joiner{startWriterOther(t, q), startWriterOther(t, q)}
	buf := make([]cq.Context, 4)
	for i := range uint64(50) {
		for k, w := range ws {
			w.post(t, uint64(k)*1000+i, uint64(k)*1000+i+1)
			n, err := cq.ReadContext(soon(t), q, buf, cq.ReadOptions{})
			if n != 1 || err != nil || buf[0].Context != uint64(k)*1000+i {
				t.Fatal(i, n, err, buf)
			}
		}
	}
}
