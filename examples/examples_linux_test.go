// Package examples runs the programs below it, each as what it is: a process of its own.
package examples

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/veth"
	"github.com/shmring/shmring/internal/xdptest"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp"
)

func TestMain(m *testing.M) { shmtest.Main(m) }

// program is an example that runs.
type program struct {
	t     *testing.T
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines *bufio.Scanner
}

// build builds programs without what debuggers want, which is half of the work.
func build(ctx context.Context, dir, bin, what string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-ldflags=-w", "-o", bin, what)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
}

// all are the programs of this module, built once for all tests.
var all = sync.OnceValues(func() (bin string, err error) {
	if bin, err = shmtest.Scratch(); err != nil {
		return "", err
	}
	return bin, build(context.Background(), ".", bin, "./...")
})

// programs starts those of this module.
func programs(t *testing.T) (start func(name string, args ...string) *program) {
	t.Helper()
	bin := shmtest.Got(all()).Or(t)
	return starter(t, bin)
}

// starter starts programs that are in a directory.
func starter(t *testing.T, bin string) (start func(name string, args ...string) *program) {
	return func(name string, args ...string) *program {
		t.Helper()
		p := &program{t: t, cmd: exec.CommandContext(t.Context(), filepath.Join(bin, name), args...)}
		p.cmd.Stderr = os.Stderr
		in := shmtest.Got(p.cmd.StdinPipe()).Or(t)
		out := shmtest.Got(p.cmd.StdoutPipe()).Or(t)
		p.in, p.lines = in, bufio.NewScanner(out)
		must(t, p.cmd.Start())
		t.Cleanup(func() { // of a test that failed
			_ = p.cmd.Process.Kill()
			_ = p.cmd.Wait()
		})
		return p
	}
}

// prints waits for these lines, which must be the next ones.
func (p *program) prints(want ...string) {
	p.t.Helper()
	for _, w := range want {
		if !p.lines.Scan() {
			p.t.Fatalf("%v ended before it printed %q", p.cmd, w)
		}
		if got := p.lines.Text(); got != w {
			p.t.Fatalf("%v printed %q, want %q", p.cmd, got, w)
		}
	}
}

// ends waits for the end of the program, which must be a good one without further lines.
func (p *program) ends() {
	p.t.Helper()
	for p.lines.Scan() {
		p.t.Errorf("%v printed %q besides", p.cmd, p.lines.Text())
	}
	if err := p.cmd.Wait(); err != nil {
		p.t.Fatalf("%v: %v", p.cmd, err)
	}
}

func (p *program) interrupt() {
	p.t.Helper()
	must(p.t, p.cmd.Process.Signal(os.Interrupt))
	p.ends()
}

func (p *program) kill() {
	p.t.Helper()
	must(p.t, p.cmd.Process.Kill())
	_ = p.cmd.Wait()
}

func TestProducerAndConsumer(t *testing.T) {
	start := programs(t)
	early := start("producer") // it waits for the queue
	consumer := start("consumer")
	early.ends()
	consumer.prints("done: 1 MSG|SEND", "done: 2 MSG|SEND", "done: 3 MSG|SEND")
	start("producer").ends()
	consumer.prints("done: 1 MSG|SEND", "done: 2 MSG|SEND", "done: 3 MSG|SEND")
	consumer.interrupt()
}

func TestEvents(t *testing.T) {
	start := programs(t)
	reader := start("events")
	reader.prints("reading")
	writer := start("events", "hello", "world")
	reader.prints("0: hello", "1: world")
	writer.kill()
	reader.prints(fmt.Sprint("process died: ", writer.cmd.Process.Pid))
	writer = start("events", "again")
	reader.prints("0: again")
	writer.interrupt()
	reader.interrupt()
}

func TestCounter(t *testing.T) {
	start := programs(t)
	waiter := start("counter", "wait", "3")
	waiter.prints("waiting")
	start("counter", "add", "2").ends()
	start("counter", "add", "1").ends()
	waiter.prints("reached: 3")
	waiter.ends()
}

func TestRing(t *testing.T) {
	start := programs(t)
	reader := start("ring", "read")
	reader.prints("reading")
	start("ring", "write", "3", "4").ends()
	start("ring", "write", "5", "0").ends()
	reader.prints("sum: 12")
	reader.ends()
}

func TestTagged(t *testing.T) {
	start := programs(t)
	answers := start("tagged")
	answers.prints("answering")
	for range 2 {
		asks := start("tagged", "one", "three", "seventeen")
		asks.prints("seventeen: 9 letters", "three: 5 letters", "one: 3 letters")
		asks.ends()
	}
	answers.interrupt()
}

func TestMegabyte(t *testing.T) {
	start := programs(t)
	receiver := start("megabyte")
	receiver.prints("receiving")
	for range 2 {
		sender := start("megabyte", "hello")
		receiver.prints("1048576 bytes, with 209715 times hello")
		sender.prints("sent")
		sender.ends()
		receiver.prints("receiving")
	}
	receiver.interrupt()
}

func TestCall(t *testing.T) {
	start := programs(t)
	asks := start("call", "one two", "three") // it waits for a server
	for range 2 {
		server := start("call")
		server.prints("serving")
		asks.prints("one two: 2 words", "three: 1 words")
		asks.ends()
		server.interrupt()
		asks = start("call", "one two", "three")
	}
	server := start("call")
	asks.prints("one two: 2 words", "three: 1 words")
	asks.ends()
	server.prints("serving")
	server.interrupt()
}

func TestWaitSet(t *testing.T) {
	start := programs(t)
	set := start("waitset", "bids", "asks")
	set.prints("waiting")
	for i, name := range []string{"asks", "bids", "asks"} {
		post(t, name, uint64(i))
		set.prints(fmt.Sprint(name, " ", i))
	}
	set.interrupt()
}

func TestRestart(t *testing.T) {
	start := programs(t)
	first := start("restart", "jobs")
	first.prints("reading")
	post(t, "jobs", 1, 2)
	first.prints("1 again: false")
	first.kill()
	second := start("restart", "jobs")
	second.prints("reading", "1 again: true")
	shmtest.Got(io.WriteString(second.in, "\n")).Or(t)
	second.prints("2 again: false")
	must(t, second.in.Close())
	second.ends()
	dir := openDir(t)
	must(t, cq.Remove(cq.Named(dir, "jobs")))
}

func TestSocket(t *testing.T) {
	start := programs(t)
	path := filepath.Join(t.TempDir(), "socket")
	reader := start("socket", "serve", path)
	reader.prints("serving")
	start("socket", "call", path).ends()
	reader.prints("done: 7")
	reader.interrupt()
}

func TestWeb(t *testing.T) {
	if testing.Short() {
		t.Skip("net/http takes as long to compile as all of this module: leave -short out")
	}
	bin := t.TempDir()
	must(t, build(t.Context(), "web", bin, ".")) // a module of its own
	start := starter(t, bin)
	server := start("web", "serve", "pages")
	server.prints("serving")
	for range 2 {
		client := start("web", "get", "pages")
		client.prints("/page of pages")
		client.ends()
	}
	server.interrupt()
}

func TestUDPEcho(t *testing.T) {
	pair := xdptest.NewPair(t, veth.Config{})
	// Where there is no XDP this skips, or fails if it is required.
	xdptest.Attach(t, pair.B, xdp.ProgramOptions{})
	start := programs(t)
	local := net.JoinHostPort(pair.A.Addr.String(), strconv.Itoa(7))
	var server *program
	xdptest.Do(t, pair.A, func() error {
		server = start("udpecho", pair.A.Name, local)
		return nil
	})
	server.prints("listening on " + local)
	var client net.Conn
	xdptest.Do(t, pair.B, func() (err error) {
		client, err = net.Dial("udp", local)
		return err
	})
	defer client.Close()
	echo(t, client, "over the wire and back")
	server.interrupt()
}

// echo sends text until it comes back: a datagram may be lost, as while a neighbour is resolved.
func echo(t *testing.T, c net.Conn, text string) {
	t.Helper()
	got := make([]byte, 100)
	for {
		shmtest.Got(io.WriteString(c, text)).Or(t)
		must(t, c.SetReadDeadline(time.Now().Add(time.Second)))
		n, err := c.Read(got)
		if errors.Is(err, os.ErrDeadlineExceeded) && t.Context().Err() == nil {
			continue
		}
		must(t, err)
		if string(got[:n]) != text {
			t.Fatalf("%q came back", got[:n])
		}
		return
	}
}

func openDir(t *testing.T) *shm.Dir {
	t.Helper()
	dir := shmtest.Got(shm.OpenDir("")).Or(t)
	t.Cleanup(func() { must(t, dir.Close()) })
	return dir
}

func post(t *testing.T, queue string, contexts ...uint64) {
	t.Helper()
	w := shmtest.Got(cq.Attach(context.WithoutCancel(t.Context()), cq.Named(openDir(t), queue),
		cq.WriterOptions{})).Or(t)
	for _, c := range contexts {
		must(t, w.Post(&cq.Entry{Context: c}))
	}
	must(t, w.Close())
}

var must = shmtest.Must
