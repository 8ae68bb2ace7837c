package fabric_test

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/fabric"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/wake"
	"github.com/shmring/shmring/shm"
)

func TestMain(m *testing.M) {
	shmtest.Apart(1) // what a test leaves to a goroutine is no other's
	shmtest.Main(m, map[string]func(){"echo": echo, "idle": idle, "deaf": deaf,
		"flooder": flooder, "member": member, "burst": burst, "crowd": crowd,
		"pinger": pinger, "mirror": mirror, "lender": lender, "flood": flood, "talker": talker,
		"keeper": keeper, "writer": writer, "adder": adder,
		"streamer": streamer, "flip": flipScenes.Play, "caller": caller, "callee": callee,
		"asker": asker, "met echo": metEcho, "met idle": metIdle, "starved": starved,
		"unpolled": unpolled, "another": another,
		"peers": peers, "lasting": lasting, "commits": commits,
		"over server": overServer, "over client": overClient})
}

// end is an endpoint with a queue for both sides.
type end struct {
	*fabric.Endpoint
	q *cq.Queue
	w *cq.Writer
	d *shm.Dir
	// over is when nothing more comes of its peer; nil: never.
	over context.Context
}

// open makes one. Closing it twice is harmless.
func open(name string, o fabric.Options) (*end, error) { return openSized("", name, 1024, o) }

// openSized is open in a directory, with a queue of that size.
func openSized(dir, name string, size int, o fabric.Options) (e *end, err error) {
	e = &end{}
	if e.d, err = shm.OpenDir(dir); err != nil {
		return nil, err
	}
	if e.q, err = cq.Create(cq.Unnamed("q"), cq.Options{Size: size, Shared: true}); err != nil {
		return nil, err
	}
	if e.w, err = e.q.Writer(); err != nil {
		return nil, err
	}
	o.Transmit, o.Receive, o.Progress = e.w, e.w, []*cq.Queue{e.q}
	if e.Endpoint, err = fabric.Open(e.d, name, o); err != nil {
		return nil, errors.Join(err, e.w.Close(), e.q.Close(), e.d.Close())
	}
	return e, nil
}

func (e *end) close() error {
	return errors.Join(e.Endpoint.Close(), e.w.Close(), e.q.Close(), e.d.Close())
}

func opened(t testing.TB, name string, o fabric.Options) *end {
	t.Helper()
	return openedSized(t, name, 1024, o)
}

func openedSized(t testing.TB, name string, size int, o fabric.Options) *end {
	t.Helper()
	e := shmtest.Got(openSized(shmtest.Dir(t), name, size, o)).Or(t)
	t.Cleanup(func() { must(t, e.close()) })
	return e
}

var must = shmtest.Must

// knows returns the number of the endpoint that has a name.
func (e *end) knows(t testing.TB, name string) cq.Addr {
	t.Helper()
	to := shmtest.Got(e.Resolve(name)).Or(t)
	return to
}

// steps moves an endpoint once.
func (e *end) steps(t testing.TB) {
	t.Helper()
	shmtest.Got(e.Progress()).Or(t)
}

// sleeps returns when somebody has gone to sleep on a bell: from then on only a ring wakes him.
func sleeps(t testing.TB, b *wake.Bell) {
	t.Helper()
	shmtest.Eventually(t, "the sleep", func() bool {
		n, _, _ := b.Counts()
		return n > 0
	})
}

// next waits for one completion, which may be an error.
func (e *end) next() (c cq.Entry, failed cq.ErrorEntry, err error) {
	ctx, cancel := context.WithTimeout(cmp.Or(e.over, context.Background()), 5*time.Minute)
	defer cancel()
	var dst [1]cq.Entry
	_, err = cq.ReadContext(ctx, e.q, dst[:], cq.ReadOptions{})
	if err == cq.ErrAvail {
		failed.ErrData = make([]byte, 0, cq.ErrDataMaxBytes)
		err = e.q.ReadErr(&failed)
	}
	return dst[0], failed, err
}

// moves moves an endpoint until the context ends. Nothing may fail.
func (e *end) moves(ctx context.Context) error {
	var dst [16]cq.Entry
	for {
		_, err := cq.ReadContext(ctx, e.q, dst[:], cq.ReadOptions{})
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// completes waits for a completion, and for no error.
func completes(t testing.TB, e *end) cq.Entry {
	t.Helper()
	c, failed, err := e.next()
	if err != nil || failed.Err != 0 {
		t.Fatalf("a completion: %v, %v", err, failed.Err)
	}
	return c
}

// pingPong sends a message, and waits for its echo and for both completions.
func pingPong(e *end, to cq.Addr, i int) error {
	var buf [64]byte
	text := fmt.Appendf(nil, "message %d", i)
	if err := errors.Join(e.Recv(buf[:], uint64(i)), e.Send(text, to, uint64(i))); err != nil {
		return err
	}
	for range 2 {
		c, failed, err := e.next()
		if err != nil || failed.Err != 0 || c.Context != uint64(i) {
			return fmt.Errorf("message %d: %+v, %v, %w", i, c, failed.Err, err)
		}
	}
	if string(buf[:len(text)]) != string(text) {
		return fmt.Errorf("%q came back of %q", buf, text)
	}
	return nil
}

// need ends a child that cannot go on.
var need = shmtest.Need

// child is a running process in a role.
type child struct{ *shmtest.Proc }

func start(t testing.TB, role string, env ...string) *child {
	t.Helper()
	return &child{shmtest.Start(t, shmtest.Child(t, role, env...))}
}

// started starts a child that says when it is ready.
func started(t testing.TB, role string, env ...string) *child {
	t.Helper()
	c := start(t, role, env...)
	c.Says(t, "ready")
	return c
}

// untilTold ends when the parent closes the pipe, or dies.
var untilTold = shmtest.UntilTold

// told returns a context that ends when untilTold does.
func told() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		untilTold()
		cancel()
	}()
	return ctx
}

// echo sends back what comes, until it is told to end.
func echo() {
	e := shmtest.Needs(open("echo", fabric.Options{}))
	to := shmtest.Needs(e.Resolve("main"))
	bufs := make([][256]byte, 16)
	for i := range bufs {
		need(e.Recv(bufs[i][:], uint64(i)))
	}
	fmt.Println("ready")
	ctx := told()
	var dst [16]cq.Entry
	for {
		n, err := cq.ReadContext(ctx, e.q, dst[:], cq.ReadOptions{})
		if ctx.Err() != nil {
			break
		}
		need(err)
		for _, c := range dst[:n] {
			if c.Flags&cq.FlagRecv == 0 {
				continue
			}
			b := bufs[c.Context][:]
			need(e.SendContext(ctx, &fabric.Msg{Buf: b[:c.Len], Addr: to}))
			need(e.Recv(b, c.Context))
		}
	}
	need(e.close())
}

// longBytes is a message of many steps.
const longBytes = 1 << 20

// idle has an endpoint and does nothing with it, but for what it is told.
func idle() { obeys("idle", fabric.Options{Window: 4096, Pool: longBytes}) }

func obeys(name string, o fabric.Options) {
	e := shmtest.Needs(open(name, o))
	fmt.Println("ready")
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		switch lines.Text() {
		case "progress":
			shmtest.Needs(e.Progress())
		case "receive":
			need(e.Recv(make([]byte, longBytes), 1))
		case "discard":
			need(e.RecvMsg(&fabric.Msg{Addr: fabric.Anybody, Flags: cq.FlagPeek | cq.FlagDiscard}))
		case "borrow":
			need(e.borrow(1))
		case "self":
			need(e.Inject(nil, shmtest.Needs(e.Resolve(name))))
		case "close":
			need(e.Endpoint.Close())
		case "send", "lend":
			to := shmtest.Needs(e.Resolve("main"))
			payload := pattern(longBytes)
			if lines.Text() == "lend" {
				payload = shmtest.Needs(e.Alloc(longBytes))
				copy(payload, pattern(longBytes))
			}
			need(e.Send(payload, to, 1))
		}
		fmt.Println(e.Stats().Stored)
	}
	need(e.close())
}

// burst sends some messages to main, and waits to be killed.
func burst() {
	e := shmtest.Needs(open("burst", fabric.Options{Slots: 32}))
	to := shmtest.Needs(e.Resolve("main"))
	for i := range 20 {
		need(e.Send(fmt.Appendf(nil, "message %d", i), to, uint64(i)))
	}
	fmt.Println("sent")
	untilTold()
}
