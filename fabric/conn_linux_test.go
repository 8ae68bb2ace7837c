package fabric_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/fabric"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

func directory(t testing.TB) *shm.Dir {
	t.Helper()
	d := shmtest.Got(shm.OpenDir(shmtest.Dir(t))).Or(t)
	t.Cleanup(func() { must(t, d.Close()) })
	return d
}

func listens(t testing.TB, d *shm.Dir, name string) net.Listener {
	t.Helper()
	l := shmtest.Got(fabric.Listen(d, name)).Or(t)
	t.Cleanup(func() { _ = l.Close() }) // may be closed
	return l
}

func dials(t testing.TB, d *shm.Dir, name string) net.Conn {
	t.Helper()
	c := shmtest.Got(fabric.Dial(context.Background(), d, name)).Or(t)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func accepts(t testing.TB, l net.Listener) net.Conn {
	t.Helper()
	c := shmtest.Got(l.Accept()).Or(t)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// connected is a connection with both ends here.
func connected(t testing.TB) (client, server net.Conn) {
	t.Helper()
	if strings.HasPrefix(t.Name(), "TestOver/") {
		l, _ := overListener(t)
		client = dialsOver(t, l)
		return client, accepts(t, l)
	}
	d := directory(t)
	l := listens(t, d, "server")
	client = dials(t, d, "server")
	return client, accepts(t, l)
}

// failsWith compares an error of a call.
func failsWith(t testing.TB, what string, got, want error) {
	t.Helper()
	var op *net.OpError
	if !errors.Is(got, want) || want != io.EOF && !errors.As(got, &op) {
		t.Fatalf("%s: %v, want %v", what, got, want)
	}
}

func reads(t testing.TB, c net.Conn, want string) {
	t.Helper()
	b := make([]byte, len(want))
	_, err := io.ReadFull(c, b)
	if err != nil || string(b) != want {
		t.Fatalf("read %q, %v: want %q", b, err, want)
	}
}

func writes(t testing.TB, c net.Conn, text string) {
	t.Helper()
	n, err := c.Write([]byte(text))
	if err != nil || n != len(text) {
		t.Fatalf("wrote %d of %d bytes, %v", n, len(text), err)
	}
}

type halfCloser interface{ CloseWrite() error }

// TestConnEnds: what was written is read, then the end; and what each call says after what.
func TestConnEnds(t *testing.T) {
	var b [8]byte
	t.Run("half", func(t *testing.T) {
		c, s := connected(t)
		writes(t, c, "question")
		must(t, c.(halfCloser).CloseWrite())
		_, err := c.Write(b[:])
		failsWith(t, "write after CloseWrite", err, syscall.EPIPE)
		reads(t, s, "question")
		_, err = s.Read(b[:])
		failsWith(t, "read at the end", err, io.EOF)
		writes(t, s, "answer")
		must(t, s.Close())
		reads(t, c, "answer")
		_, err = c.Read(b[:])
		failsWith(t, "read after the peer's close", err, io.EOF)
	})
	t.Run("closed", func(t *testing.T) {
		c, s := connected(t)
		must(t, c.Close())
		failsWith(t, "close twice", c.Close(), net.ErrClosed)
		_, err := c.Read(b[:])
		failsWith(t, "read", err, net.ErrClosed)
		_, err = c.Write(b[:])
		failsWith(t, "write", err, net.ErrClosed)
		failsWith(t, "deadline", c.SetDeadline(time.Time{}), net.ErrClosed)
		_, err = s.Read(b[:])
		failsWith(t, "the peer's read", err, io.EOF)
		_, err = s.Write(b[:])
		failsWith(t, "the peer's write", err, syscall.EPIPE)
	})
	t.Run("unread", func(t *testing.T) {
		c, s := connected(t)
		writes(t, c, "nobody reads this")
		must(t, s.Close())
		_, err := c.Read(b[:])
		failsWith(t, "read", err, io.EOF)
	})
	t.Run("nothing", func(t *testing.T) {
		c, s := connected(t)
		writes(t, c, "")
		if n, err := s.Read(nil); n != 0 || err != nil {
			t.Fatalf("read of nothing: %d, %v", n, err)
		}
	})
}

// TestListen: names, the backlog, and who is refused.
func TestListen(t *testing.T) {
	d := directory(t)
	_, err := fabric.Dial(context.Background(), d, "server")
	failsWith(t, "dial to nobody", err, syscall.ECONNREFUSED)
	wantText(t, err, "dial shmring server: connect: connection refused; start the process "+
		"that has that name, or set SHMRING_DIR to its directory") // the same at each try
	l := listens(t, d, "server")
	_, err = fabric.Listen(d, "server")
	failsWith(t, "listen twice", err, syscall.EADDRINUSE)
	waits := dials(t, d, "server") // nobody accepts it
	taken := dials(t, d, "server")
	if a := taken.RemoteAddr(); a.Network() != "shmring" || a.String() != "server" {
		t.Fatalf("address %v of %s", a, a.Network())
	}
	_ = waits.Close()
	s := accepts(t, l) // it was open, and has its end
	_, err = s.Read(make([]byte, 1))
	failsWith(t, "read of what was closed at once", err, io.EOF)
	s = accepts(t, l)
	var many []net.Conn
	for {
		c, err := fabric.Dial(context.Background(), d, "server")
		if err != nil {
			failsWith(t, "dial to a full backlog", err, syscall.ECONNREFUSED)
			break
		}
		many = append(many, c)
	}
	if len(many) != 128 {
		t.Errorf("the backlog has %d", len(many))
	}
	must(t, l.Close())
	_, err = l.Accept()
	failsWith(t, "accept", err, net.ErrClosed)
	_, err = many[0].Read(make([]byte, 1))
	failsWith(t, "read of what nobody accepted", err, io.EOF)
	for _, c := range many {
		must(t, c.Close())
	}
	l2 := listens(t, d, "server") // beside connections of the former one
	writes(t, taken, "still here")
	reads(t, s, "still here")
	c2 := dials(t, d, "server")
	s2 := accepts(t, l2)
	writes(t, c2, "the next")
	reads(t, s2, "the next")
	e := opened(t, "plain", fabric.Options{})
	_, err = fabric.Dial(context.Background(), d, e.name())
	failsWith(t, "dial to an endpoint that does not listen", err, syscall.ECONNREFUSED)
}

func (e *end) name() string { return "plain" }

// TestCloseBesideDial: a dial that fails leaves nothing of what dials share, and a Close that waits
// for its peer returns when the next dial begins, which keeps that.
func TestCloseBesideDial(t *testing.T) {
	defer fabric.SetClosePatience(time.Hour)()
	d := directory(t)
	_, err := fabric.Dial(t.Context(), d, "server")
	failsWith(t, "dial to nobody", err, syscall.ECONNREFUSED)
	if names := shmtest.Got(d.List()).Or(t); len(names) > 0 {
		t.Errorf("a dial that failed leaves %v", names)
	}
	l := listens(t, d, "server")
	c := dials(t, d, "server")
	s := accepts(t, l)
	held := fabric.Below(l).Bell()
	held.Lock()
	closed := make(chan error, 1)
	go func() { closed <- c.Close() }()
	stackHas(t, "(*mux).leave(")
	next := make(chan net.Conn, 1)
	go func() {
		c, err := fabric.Dial(t.Context(), d, "server")
		if err != nil {
			t.Errorf("dial: %v", err)
		}
		next <- c
	}()
	must(t, <-closed)
	_ = c.RemoteAddr() // for the race detector: the dial looks the name up
	held.Unlock()
	must(t, errors.Join((<-next).Close(), s.Close()))
}

// stackHas returns when a goroutine is in a function.
func stackHas(t testing.TB, function string) {
	t.Helper()
	stacks := make([]byte, 1<<20)
	shmtest.Eventually(t, function, func() bool {
		return bytes.Contains(stacks[:runtime.Stack(stacks, true)], []byte(function))
	})
}

// TestConnDeadlines: calls that wait end at deadlines, at closes and with contexts; what they did
// before counts.
func TestConnDeadlines(t *testing.T) {
	c, s := connected(t)
	must(t, c.SetReadDeadline(time.Now().Add(10*time.Millisecond)))
	_, err := c.Read(make([]byte, 1))
	failsWith(t, "read", err, os.ErrDeadlineExceeded)
	must(t, c.SetReadDeadline(time.Time{}))
	long := pattern(1 << 20)
	n, wrote := 0, make(chan error)
	go func() {
		var err error
		n, err = c.Write(long)
		wrote <- err
	}()
	reads(t, s, string(long[:1])) // it is under way, and finds no room in the end
	must(t, c.SetWriteDeadline(time.Now().Add(10*time.Millisecond)))
	failsWith(t, "write", <-wrote, os.ErrDeadlineExceeded)
	must(t, c.SetWriteDeadline(time.Time{}))
	must(t, c.(halfCloser).CloseWrite())
	got, err := io.ReadAll(s)
	if err != nil || string(got) != string(long[1:n]) {
		t.Fatalf("%d bytes were said to be written, %d came, %v", n, len(got), err)
	}
	done := make(chan error)
	for _, call := range []func() error{
		func() error { _, err := s.Read(make([]byte, 1)); return err },
		func() error { _, err := c.Read(make([]byte, 1)); return err },
	} {
		go func() { done <- call() }()
	}
	failsWith(t, "read at the end", <-done, io.EOF)
	must(t, c.Close())
	if err := <-done; !errors.Is(err, net.ErrClosed) {
		t.Fatalf("read when closed: %v", err)
	}
}

// TestDialStopped: a listener whose process stands keeps who asks until the context ends, and one
// that dies refuses it. What it says when it goes on harms nobody.
func TestDialStopped(t *testing.T) {
	d := directory(t)
	ch := started(t, "talker")
	ch.Halt(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err := fabric.Dial(ctx, d, "talker")
	failsWith(t, "dial", err, context.DeadlineExceeded)
	ch.GoOn(t)
	c := dials(t, d, "talker")
	writes(t, c, "hello")
	reads(t, c, "hello")
	ch.Halt(t)
	done := make(chan error)
	go func() {
		_, err := fabric.Dial(context.Background(), d, "talker")
		done <- err
	}()
	ch.Kill()
	failsWith(t, "dial", <-done, syscall.ECONNREFUSED)
	_, err = c.Read(make([]byte, 1))
	failsWith(t, "read", err, syscall.ECONNRESET)
}

// talker echoes every connection.
func talker() {
	d := shmtest.Needs(shm.OpenDir(""))
	l := shmtest.Needs(fabric.Listen(d, "talker"))
	fmt.Println("ready")
	var all sync.WaitGroup
	all.Go(func() {
		untilTold()
		need(l.Close())
	})
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			break
		}
		need(err)
		all.Go(func() {
			_, _ = io.Copy(c, c)
			_ = c.Close()
		})
	}
	all.Wait()
	need(d.Close())
}

// TestConnStream: bytes arrive as they were written, whatever the sizes of writes and reads.
func TestConnStream(t *testing.T) {
	d := directory(t)
	ch := started(t, "talker")
	total := 64 << 20
	if testing.Short() {
		total = 4 << 20
	}
	c := dials(t, d, "talker")
	sums := make(chan [32]byte)
	go func() {
		h, random := sha256.New(), rand.New(rand.NewPCG(1, 2))
		for left := total; left > 0; {
			b := make([]byte, min(left, 1+random.IntN(100<<10)))
			if random.IntN(2) == 0 {
				b = b[:min(len(b), 300)]
			}
			for i := range b {
				b[i] = byte(random.Uint32())
			}
			if n, err := c.Write(b); err != nil || n != len(b) {
				t.Errorf("wrote %d of %d, %v", n, len(b), err)
				break
			}
			h.Write(b)
			left -= len(b)
		}
		if err := c.(halfCloser).CloseWrite(); err != nil {
			t.Error(err)
		}
		sums <- [32]byte(h.Sum(nil))
	}()
	h, random := sha256.New(), rand.New(rand.NewPCG(3, 4))
	got := 0
	for {
		b := make([]byte, 1+random.IntN(64<<10))
		n, err := c.Read(b)
		h.Write(b[:n])
		got += n
		if err == io.EOF {
			break
		}
		must(t, err)
	}
	if sum := <-sums; [32]byte(h.Sum(nil)) != sum || got != total {
		t.Errorf("%d of %d bytes came, and not as they were", got, total)
	}
	must(t, c.Close())
	ch.Stop(t)
}

// TestConnStands: a connection whose reader stands stops no other one of its pair.
func TestConnStands(t *testing.T) {
	d := directory(t)
	l := listens(t, d, "server")
	stands := dials(t, d, "server")
	_ = accepts(t, l)
	full := make(chan error)
	go func() {
		_, err := stands.Write(make([]byte, 1<<20))
		full <- err
	}()
	c := dials(t, d, "server")
	s := accepts(t, l)
	for range 1000 {
		writes(t, c, "across")
		reads(t, s, "across")
		writes(t, s, "and back")
		reads(t, c, "and back")
	}
	must(t, stands.Close())
	if err := <-full; !errors.Is(err, net.ErrClosed) {
		t.Errorf("the write that waited: %v", err)
	}
}

// TestConnMany: a thousand connections of one pair of processes, each with bytes under way.
func TestConnMany(t *testing.T) {
	d := directory(t)
	ch := started(t, "talker")
	n := 400
	if testing.Short() {
		n = 200
	}
	conns := make([]net.Conn, n)
	for i := range conns {
		conns[i] = dials(t, d, "talker")
	}
	var all sync.WaitGroup
	for i, c := range conns {
		all.Go(func() {
			for k := range 10 {
				text := fmt.Sprintf("connection %d, message %d", i, k)
				writes(t, c, text)
				reads(t, c, text)
			}
		})
	}
	all.Wait()
	for _, c := range conns {
		must(t, c.Close())
	}
	ch.Stop(t)
}

// TestConnSpare: what comes before its Read, again and again, takes no new memory.
func TestConnSpare(t *testing.T) {
	const trips, most = 64, 32 << 10
	client, server := connected(t)
	text, got := pattern(64<<10), make([]byte, 64<<10)
	trip := func() {
		shmtest.Got(client.Write(text)).Or(t)
		_, err := io.ReadFull(server, got[:1]) // the others come before their Read
		must(t, err)
		shmtest.Got(io.ReadFull(server, got[1:])).Or(t)
	}
	trip()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range trips {
		trip()
	}
	runtime.ReadMemStats(&after)
	if n := (after.TotalAlloc - before.TotalAlloc) / trips; n > most || !bytes.Equal(got, text) {
		t.Errorf("64 KiB take %d bytes of new memory, or come as others", n)
	}
}

// TestConnIdle: a connection that had its bytes and waits for more costs 16 KiB at most, both ends
// together, and no thread, though somebody reads it.
func TestConnIdle(t *testing.T) {
	const most = 16 << 10
	d := directory(t)
	l := listens(t, d, "server")
	n := 500
	if testing.Short() {
		n = 200
	}
	text := string(pattern(64 << 10))
	pair := func() (ends [2]net.Conn) {
		ends[0] = dials(t, d, "server")
		ends[1] = accepts(t, l)
		for i := range ends {
			writes(t, ends[i], text)
			reads(t, ends[1-i], text[:1]) // the others come before their Read
			reads(t, ends[1-i], text[1:])
		}
		return ends
	}
	pair()
	heap := func() int {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc + m.StackInuse)
	}
	threads := func() int {
		all := shmtest.Got(os.ReadDir("/proc/self/task")).Or(t)
		return len(all)
	}
	hadHeap, hadThreads, hadRoutines := heap(), threads(), runtime.NumGoroutine()
	all := make([][2]net.Conn, n)
	for i := range all {
		all[i] = pair()
	}
	if more := (heap() - hadHeap) / n; more > most {
		t.Errorf("an idle connection costs %d bytes", more)
	} else {
		t.Logf("an idle connection costs %d bytes", more)
	}
	if more := runtime.NumGoroutine() - hadRoutines; more > n/10 {
		t.Errorf("%d idle connections have %d goroutines", n, more)
	}
	var readers sync.WaitGroup
	for _, ends := range all {
		for _, c := range ends {
			readers.Go(func() { _, _ = io.Copy(io.Discard, c) })
		}
	}
	last := pair() // while the others wait, or begin to
	if more := threads() - hadThreads; more > n/10 {
		t.Errorf("%d connections have %d threads", n, more)
	}
	for _, ends := range append(all, last) {
		must(t, ends[0].Close())
		must(t, ends[1].Close())
	}
	readers.Wait()
}
