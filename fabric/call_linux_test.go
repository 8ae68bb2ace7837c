package fabric_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/fabric"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// callee serves calls as answerer says, and releases one that waits for each line. It ends at the
// end of the lines.
func callee() {
	d := shmtest.Needs(shm.OpenDir(""))
	ctx, cancel := context.WithCancel(context.Background())
	released := make(chan struct{})
	go func() {
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			released <- struct{}{}
		}
		cancel()
	}()
	fmt.Println("ready") // Listen is soon: who calls asks again
	need(fabric.Serve(ctx, d, "callee", answerer(func() {
		fmt.Println("runs")
		<-released
	})))
	need(d.Close())
}

// answerer returns a handler: of what it is asked it repeats what follows "echo"; it waits before
// it does that for "wait"; it ends its goroutine for "exit".
func answerer(wait func()) func(context.Context, []byte) []byte {
	return func(_ context.Context, request []byte) []byte {
		switch what := string(request[:4]); what {
		case "exit":
			runtime.Goexit()
		case "wait":
			wait()
		}
		return request[4:]
	}
}

// serves serves in this process until stop is called, or the test ends. Then Serve must return nil.
func serves(t testing.TB, d *shm.Dir, wait func()) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- fabric.Serve(ctx, d, "callee", answerer(wait)) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func callerOf(t testing.TB, d *shm.Dir) *fabric.Caller {
	t.Helper()
	a := shmtest.Got(fabric.NewCaller(d, "callee")).Or(t)
	t.Cleanup(func() { must(t, a.Close()) })
	return a
}

// answered is a call that must succeed. It is made again while nobody serves yet.
func answered(t testing.TB, a *fabric.Caller, request string) {
	t.Helper()
	got, err := ask(t.Context(), a, request)
	for errors.Is(err, syscall.ECONNREFUSED) {
		runtime.Gosched()
		got, err = ask(t.Context(), a, request)
	}
	if err != nil || got != request[4:] {
		t.Fatalf("call %.20q: %.20q, %v", request, got, err)
	}
}

func ask(ctx context.Context, a *fabric.Caller, request string) (reply string, err error) {
	b := make([]byte, len(request))
	n, err := a.Call(ctx, []byte(request), b)
	return string(b[:n]), err
}

// refuses compares an error of a call, and whether it says that the call has not run.
func refuses(t testing.TB, err, want error, notRun bool) {
	t.Helper()
	if !errors.Is(err, want) || errors.Is(err, fabric.ErrNotRun) != notRun {
		t.Errorf("%v: want %v, not run is %v", err, want, notRun)
	}
}

// waitsIn returns when a call of this process waits in a method.
func waitsIn(t testing.TB, method string) {
	t.Helper()
	stacks := make([]byte, 1<<20)
	for t.Context().Err() == nil {
		for _, one := range strings.Split(string(stacks[:runtime.Stack(stacks, true)]), "\n\n") {
			if strings.Contains(one, "(*Caller).Call(") && strings.Contains(one, method) &&
				strings.Contains(one, "(*Endpoint).await(") {
				return
			}
		}
		time.Sleep(time.Millisecond)
	}
}

// TestCall: requests and replies of all lengths, and a reply that is longer than its room, which
// harms no other call.
func TestCall(t *testing.T) {
	d := directory(t)
	a := callerOf(t, d)
	_, err := ask(t.Context(), a, "echo")
	refuses(t, err, syscall.ECONNREFUSED, true)
	serves(t, d, nil)
	answered(t, a, "echo")
	for _, n := range []int{0, 1, 100, 4<<10 - 20, 4<<10 - 8, 4 << 10, 32 << 10, 300 << 10, 1 << 20} {
		request := append([]byte("echo"), pattern(n)...)
		for _, room := range []int{n, n + 1, n / 2, 0} {
			reply := bytes.Repeat([]byte{0xee}, room+1)
			got, err := a.Call(t.Context(), request, reply[:room])
			short := min(n, room)
			if got != short || !bytes.Equal(reply[:short], pattern(n)[:short]) || reply[room] != 0xee {
				t.Errorf("%d of %d bytes, or others", got, n)
			}
			if room < n {
				refuses(t, err, fabric.ErrTooLong, false)
			} else {
				must(t, err)
			}
		}
	}
	tooLong, err := unix.Mmap(-1, 0, fabric.MaxMessage+1, unix.PROT_NONE, // nobody looks at it
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	must(t, err)
	_, err = a.Call(t.Context(), tooLong, nil)
	refuses(t, err, fabric.ErrTooLong, true)
	must(t, unix.Munmap(tooLong))
	_, err = ask(t.Context(), a, "exit")
	if err == nil || errors.Is(err, fabric.ErrNotRun) {
		t.Errorf("a handler that ended its goroutine: %v", err)
	}
	answered(t, a, "echo again")
	must(t, a.Close())
	_, err = ask(t.Context(), a, "echo")
	refuses(t, err, os.ErrClosed, true)
}

// TestCallMany: calls of many goroutines run at once, each gets its own reply, and those before
// keep none from the next.
func TestCallMany(t *testing.T) {
	const all = 40
	d := directory(t)
	var here sync.WaitGroup
	here.Add(all)
	serves(t, d, func() {
		here.Done()
		here.Wait() // until all run
	})
	a := callerOf(t, d)
	answered(t, a, "echo")
	var callers sync.WaitGroup
	for i := range all {
		callers.Go(func() {
			for j := range 50 {
				what := "echo"
				if j == 25 {
					what = "wait"
				}
				request := fmt.Sprintf("%s%d of %d%s", what, j, i, strings.Repeat("-", i*j*7))
				if got, err := ask(t.Context(), a, request); err != nil || got != request[4:] {
					t.Errorf("%.20q: %.20q, %v", request, got, err)
				}
			}
		})
	}
	callers.Wait()
}

// TestCallKilled: what a call says whose server dies, by how far it had come. Only what no handler
// saw, nor can see, may be repeated.
func TestCallKilled(t *testing.T) {
	shmtest.Conforms(t)
	half := "wait" + string(pattern(1<<20)) // more than a window
	for _, row := range []struct {
		name    string
		earlier bool   // there was a call before
		stands  bool   // the server's process does
		in      string // this call stands then; "": none is under way
		request string
		notRun  bool
		want    error
	}{
		{"before it is connected", false, true, "(*mux).dial(", "echo", true, syscall.ECONNREFUSED},
		{"before it is examined", true, true, "(*conn).Read(", "echo", true, syscall.ECONNREFUSED},
		{"before all is sent", true, true, "(*conn).Write(", half, true, syscall.ECONNREFUSED},
		{"in the handler", false, false, "(*conn).Read(", "wait", false, fabric.ErrPeerDied},
		{"in the handler of a later one", true, false, "(*conn).Read(", "wait", false,
			fabric.ErrPeerDied},
		{"after it", true, false, "", "", true, syscall.ECONNREFUSED},
	} {
		t.Run(row.name, func(t *testing.T) {
			d := directory(t)
			c := started(t, "callee")
			a := callerOf(t, d)
			if row.earlier {
				answered(t, a, "echo")
			} else {
				answered(t, callerOf(t, d), "echo")
			}
			if row.stands {
				c.Halt(t)
			}
			done := make(chan error, 1)
			if row.request != "" {
				go func() {
					_, err := ask(t.Context(), a, row.request)
					done <- err
				}()
				waitsIn(t, row.in)
			}
			if row.request == "wait" {
				c.Says(t, "runs")
			}
			c.Kill()
			if row.request == "" {
				_, err := ask(t.Context(), a, "echo")
				done <- err
			}
			refuses(t, <-done, row.want, row.notRun)
			next := started(t, "callee")
			answered(t, a, "echo again")
			next.Stop(t)
		})
	}
}

// TestCallContext: what a call says whose context ends, by how far it had come; and the next gets
// its own reply, though that of the former comes late.
func TestCallContext(t *testing.T) {
	half := "wait" + string(pattern(1<<20))
	for _, row := range []struct {
		name            string
		earlier, stands bool
		in, request     string
		notRun          bool
	}{
		{"before it is connected", false, true, "(*mux).dial(", "echo", true},
		{"before it is examined", true, true, "(*conn).Read(", "echo", false},
		{"before all is sent", true, true, "(*conn).Write(", half, true},
		{"in the handler", true, false, "(*conn).Read(", "wait late", false},
	} {
		t.Run(row.name, func(t *testing.T) {
			d := directory(t)
			c := started(t, "callee")
			a := callerOf(t, d)
			if row.earlier {
				answered(t, a, "echo")
			} else {
				answered(t, callerOf(t, d), "echo")
			}
			if row.stands {
				c.Halt(t)
			}
			cause := errors.New("it takes too long")
			ctx, cancel := context.WithCancelCause(t.Context())
			done := make(chan error)
			go func() {
				_, err := ask(ctx, a, row.request)
				done <- err
			}()
			if waitsIn(t, row.in); !row.stands {
				c.Says(t, "runs")
			}
			cancel(cause)
			err := <-done
			refuses(t, err, cause, row.notRun)
			refuses(t, err, context.Canceled, row.notRun)
			if row.stands {
				c.GoOn(t)
			} else {
				shmtest.Got(fmt.Fprintln(c.In)).Or(t)
			}
			for i := range 20 {
				answered(t, a, fmt.Sprint("echo", i))
			}
			_, err = ask(ctx, a, "echo")
			refuses(t, err, cause, true)
			c.Stop(t)
		})
	}
}

// TestCallStopped: a server that stops answers what runs, and says of the rest that it did not. A
// caller that is closed ends its calls.
func TestCallStopped(t *testing.T) {
	d := directory(t)
	runs, released := make(chan bool), make(chan bool)
	stop := serves(t, d, func() {
		runs <- true
		<-released
	})
	a, b := callerOf(t, d), callerOf(t, d)
	answered(t, a, "echo")
	answered(t, b, "echo")
	got := make(chan error, 2)
	for _, c := range []*fabric.Caller{a, b} {
		go func() {
			_, err := ask(t.Context(), c, "wait")
			got <- err
		}()
		<-runs
	}
	must(t, b.Close())
	refuses(t, <-got, os.ErrClosed, false)
	go stop()
	for refused := false; !refused; {
		_, err := ask(t.Context(), a, "echo")
		switch refused = errors.Is(err, syscall.ECONNREFUSED); {
		case refused:
			refuses(t, err, syscall.ECONNREFUSED, true)
		case err != nil: // its connection was accepted just before
			refuses(t, err, fabric.ErrPeerClosed, true)
		}
	}
	close(released)
	must(t, <-got)
	stop()
}

// TestCallHostile: who says in place of a reply what cannot be, ends a call that may have run; and
// who asks for what cannot be has no call.
func TestCallHostile(t *testing.T) {
	d := directory(t)
	l := listens(t, d, "callee")
	a := callerOf(t, d)
	for _, row := range []struct {
		reply  []byte
		notRun bool
		want   error
	}{
		{nil, true, fabric.ErrPeerClosed},
		{[]byte{1, 0, 0}, false, io.ErrUnexpectedEOF},
		{[]byte{9, 0, 0, 0, 0, 0, 0, 0, 'x'}, false, io.ErrUnexpectedEOF},
		{binary.LittleEndian.AppendUint64(nil, fabric.MaxMessage+1), false, fabric.ErrCorrupt},
		{bytes.Repeat([]byte{0xfe}, 8), false, fabric.ErrCorrupt},
	} {
		done := make(chan error)
		go func() {
			_, err := ask(t.Context(), a, "echo long enough")
			done <- err
		}()
		c := accepts(t, l)
		reads(t, c, "\x10\x00\x00\x00\x00\x00\x00\x00\x10\x00\x00\x00\x00\x00\x00\x00echo long enough")
		shmtest.Got(c.Write(row.reply)).Or(t)
		must(t, c.Close())
		refuses(t, <-done, row.want, row.notRun)
	}
	must(t, l.Close())
	var ran atomic.Bool
	serves(t, d, func() { ran.Store(true) })
	answered(t, a, "echo")
	c := dials(t, d, "callee")
	shmtest.Got(c.Write(append(binary.LittleEndian.AppendUint64(nil, fabric.MaxMessage+1),
		make([]byte, 8)...))).Or(t)
	if n, err := drain(c); n != 0 || err != io.EOF || ran.Load() {
		t.Errorf("%d bytes, %v", n, err)
	}
	c = dials(t, d, "callee")
	writes(t, c, "\x04\x00\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff\xff\xff\xff\xffwait")
	reads(t, c, "\x00\x00\x00\x00\x00\x00\x00\x00")
}

// TestCallClosed: a caller that is closed dials nobody, though its endpoint would have to look who
// has gone first.
func TestCallClosed(t *testing.T) {
	defer fabric.SetConnPeers(1)()
	d := directory(t)
	serves(t, d, nil)
	a := callerOf(t, d)
	answered(t, a, "echo")
	must(t, a.Close())
	for range 100 {
		_, err := ask(t.Context(), a, "echo")
		refuses(t, err, os.ErrClosed, true)
	}
}

// TestServeHeld: who does not read its reply holds up a server that ends for a bounded time.
func TestServeHeld(t *testing.T) {
	defer fabric.SetClosePatience(time.Millisecond)()
	d := directory(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- fabric.Serve(ctx, d, "callee", func(context.Context, []byte) []byte {
			cancel()
			return make([]byte, 1<<20)
		})
	}()
	var c net.Conn
	shmtest.Eventually(t, "a server", func() (ok bool) {
		var err error
		c, err = fabric.Dial(t.Context(), d, "callee")
		return err == nil
	})
	writes(t, c, "\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff\xff\xff\xff\xff")
	select {
	case err := <-done:
		must(t, err)
	case <-time.After(20 * time.Second):
		t.Error("it waits")
	}
	must(t, c.Close())
}

// noting is a context that notes what is to be called at its end.
type noting struct {
	context.Context
	mu    sync.Mutex
	noted map[*func()]bool
}

// AfterFunc is what package context asks for it.
func (c *noting) AfterFunc(f func()) (stop func() bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.noted == nil {
		c.noted = map[*func()]bool{}
	}
	c.noted[&f] = true
	return func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		was := c.noted[&f]
		delete(c.noted, &f)
		return was
	}
}

// Value hides what the context is made of.
func (c *noting) Value(any) any { return nil }

// TestServeForgets: a server remembers nothing of who has gone in the middle of a reply.
func TestServeForgets(t *testing.T) {
	d := directory(t)
	inner, cancel := context.WithCancel(t.Context())
	ctx, done := &noting{Context: inner}, make(chan error, 1)
	go func() {
		done <- fabric.Serve(ctx, d, "callee", func(context.Context, []byte) []byte {
			return make([]byte, 1<<20)
		})
	}()
	noted := func(n int) func() bool {
		return func() bool {
			ctx.mu.Lock()
			defer ctx.mu.Unlock()
			return len(ctx.noted) == n
		}
	}
	shmtest.Eventually(t, "a server", noted(1))
	c := dials(t, d, "callee")
	writes(t, c, "\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff\xff\xff\xff\xff")
	reads(t, c, "\x00\x00\x10\x00\x00\x00\x00\x00")
	shmtest.Eventually(t, "a reply", noted(3))
	must(t, c.Close())
	shmtest.Eventually(t, "the end of the reply", noted(1))
	cancel()
	ctx.mu.Lock()
	end := slices.Collect(maps.Keys(ctx.noted))
	ctx.mu.Unlock()
	for _, f := range end {
		(*f)()
	}
	must(t, <-done)
}

// TestServeUnsaid: a server that ends, and finds no room for a reply, says that there is none
// before it ends the connection: who made the call would take that for a call that has not run.
func TestServeUnsaid(t *testing.T) {
	defer fabric.SetClosePatience(time.Millisecond)()
	d := directory(t)
	ctx, cancel := context.WithCancel(t.Context())
	runs, done := make(chan bool), make(chan error, 1)
	go func() {
		done <- fabric.Serve(ctx, d, "server", func(context.Context, []byte) []byte {
			runs <- true
			<-runs
			return nil
		})
	}()
	answers := func() bool {
		c, err := fabric.Dial(t.Context(), d, "server")
		return err == nil && c.Close() == nil
	}
	shmtest.Eventually(t, "a server", answers)
	e := holder(t, fabric.Options{Window: 4096})
	must(t, e.say(said{1, 1 << 32, connWindow4096}, 0))
	e.number = e.hears(t).Data
	must(t, e.say(said{4, 0, nil}, 0))
	must(t, e.say(said{5, 0, make([]byte, 16)}, 0))
	<-runs
	for i := range uint64(80) { // whose answers use up what is granted
		must(t, e.say(said{1, (2 + i) << 32, connWindow4096}, 0))
	}
	must(t, e.say(said{5, 0, nil}, 2))
	shmtest.Got(e.await(t, 2)).Or(t)
	cancel()
	runs <- true
	must(t, <-done)
	for {
		switch m := e.hears(t); m.Tag {
		case 5 | 1<<32:
			if m.Len != 8 || e.heard != ^uint64(0) {
				t.Errorf("a reply of %d bytes, %#x", m.Len, e.heard)
			}
			return
		case 8 | 1<<32:
			t.Fatal("it says that no handler has run")
		}
	}
}

// asker makes calls until it is killed.
func asker() {
	d := shmtest.Needs(shm.OpenDir(""))
	a := shmtest.Needs(fabric.NewCaller(d, "callee"))
	shmtest.Needs(ask(context.Background(), a, "wait"))
}

// TestCallerKilled: a server goes on whose callers die, in their call and between two.
func TestCallerKilled(t *testing.T) {
	d := directory(t)
	runs, released := make(chan bool), make(chan bool)
	stop := serves(t, d, func() {
		runs <- true
		<-released
	})
	a := callerOf(t, d)
	answered(t, a, "echo")
	for range 3 {
		c := start(t, "asker")
		<-runs
		c.Kill()
		answered(t, a, "echo")
		released <- true
		answered(t, a, "echo")
	}
	must(t, a.Close())
	stop()
}
