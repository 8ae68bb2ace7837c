package fabric_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/ctl"
	"github.com/shmring/shmring/fabric"
	"github.com/shmring/shmring/internal/collect"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// compile makes the peer that is written in C.
func compile(t *testing.T) string {
	t.Helper()
	cc, err := exec.LookPath("cc")
	shmtest.Require(t, "cc", err)
	out := filepath.Join(t.TempDir(), "peer")
	text, err := exec.CommandContext(t.Context(), cc, "-O2", "-Wall", "-pthread", "-o", out,
		filepath.Join("testdata", "peer.c")).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return out
}

// startC starts it, to echo what an endpoint sends it. Soon after its end nothing more is waited
// for here.
func startC(t *testing.T, program string, e *end, other string, args ...string) *child {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program,
		append([]string{e.d.Path(), "c", other}, args...)...)
	says, stderr, err := os.Pipe()
	must(t, err)
	cmd.Stderr = stderr
	c := &child{shmtest.Start(t, cmd)}
	must(t, stderr.Close())
	var over context.CancelFunc
	e.over, over = context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(os.Stderr, says)
		_ = says.Close()
		time.AfterFunc(5*time.Second, over)
	}()
	c.Says(t, "ready")
	return c
}

// openedForC opens an endpoint. What processes that fail leave, nobody else collects.
func openedForC(t *testing.T, o fabric.Options) *end {
	t.Helper()
	d := shmtest.Got(shm.OpenDir(shmtest.Dir(t))).Or(t)
	t.Cleanup(func() {
		_, err := ctl.Collect(d, ctl.CollectOptions{Remove: true})
		must(t, errors.Join(err, d.Close()))
	})
	return opened(t, "main", o)
}

// echoBytes fit a slot, a chunk, or the window, or just do not. They are more headers alone than a
// control ring has records.
var echoBytes = []int{0, fabric.MaxInline, fabric.MaxInline + 1, chunk - 1, chunk, chunk + 1,
	2 * chunk, 2*chunk + 1, 4*chunk + 1, 1 << 20, chunk + 2, chunk + 3, chunk + 4, 5000}

var echoOptions = fabric.Options{Pool: 2 << 20}

// sendAll sends messages of all lengths, every other by reference, with contexts from 0 on.
func sendAll(e *end, to cq.Addr) (err error) {
	for i, n := range echoBytes {
		mem := make([]byte, n)
		if i%2 == 1 {
			if mem, err = e.Alloc(n); err != nil {
				return err
			}
		}
		copy(mem, pattern(n))
		err = e.SendContext(context.Background(), &fabric.Msg{Buf: mem, Addr: to, Context: uint64(i)})
		if err == nil && i%2 == 1 {
			err = e.Free(mem)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// echoAll waits for the echoes too, which have receives before they come, or late.
func echoAll(e *end, to cq.Addr, late bool) (err error) {
	bufs := make([][]byte, len(echoBytes))
	for k := range 2 * len(bufs) {
		if late && k == len(bufs) || !late && k == 0 {
			for i, n := range echoBytes {
				bufs[i] = make([]byte, n)
				err = errors.Join(err, e.Recv(bufs[i], uint64(i)))
			}
		}
		if k == 0 {
			err = errors.Join(err, sendAll(e, to))
		}
		c, failed, err2 := e.next()
		if err = errors.Join(err, err2); err != nil || failed.Err != 0 ||
			c.Flags&cq.FlagRecv != 0 && c.Len != uint64(echoBytes[c.Context]) {
			return fmt.Errorf("%+v, %v, %w", c, failed.Err, err)
		}
	}
	for i, n := range echoBytes {
		if !bytes.Equal(bufs[i], pattern(n)) {
			return fmt.Errorf("message %d, of %d bytes, came back with others", i, n)
		}
	}
	return nil
}

// pinger plays with the process in C until it is killed.
func pinger() {
	e := shmtest.Needs(open("pinger", echoOptions))
	fmt.Println("ready")
	shmtest.Needs(os.Stdin.Read(make([]byte, 1)))
	to := shmtest.Needs(e.Resolve("c"))
	for i := 0; ; i++ {
		need(pingPong(e, to, i))
		if i%10 == 0 {
			need(echoAll(e, to, i%20 == 0))
		}
		if i == 50 {
			fmt.Println("playing")
		}
	}
}

// TestPeerInC: a program that knows the layout by docs/fabric.md alone, awake and asleep, with
// messages of all kinds and lengths, closed by itself, and killed on either side.
func TestPeerInC(t *testing.T) {
	program := compile(t)
	for _, mode := range [][]string{{"spin"}, nil} {
		for _, end := range []string{"closes", "killed"} {
			t.Run(fmt.Sprint(end, mode), func(t *testing.T) {
				e := openedForC(t, echoOptions)
				c := startC(t, program, e, "main", mode...)
				to := e.knows(t, "c")
				for i := range 200 {
					must(t, pingPong(e, to, i))
					if mode == nil && i%40 == 0 {
						time.Sleep(time.Millisecond) // both sleep
					}
				}
				for _, n := range []int{0, chunk, chunk + 1} {
					must(t, e.TRecv(make([]byte, n), to, 5, 0, 7))
					must(t, e.SendMsg(&fabric.Msg{Buf: pattern(n), Addr: to, Tag: 5, Data: 6,
						Flags: cq.FlagTagged | cq.FlagRemoteCQData}))
					c, other := completes(t, e), completes(t, e)
					if c.Flags&cq.FlagRecv == 0 {
						c = other
					}
					if c.Tag != 5 || c.Data != 6 || c.Len != uint64(n) ||
						c.Flags != cq.FlagRecv|cq.FlagTagged|cq.FlagRemoteCQData {
						t.Errorf("%+v", c)
					}
				}
				for i := range 6 {
					must(t, echoAll(e, to, i%2 == 1))
				}
				want := fabric.ErrPeerClosed
				if end == "killed" {
					must(t, sendAll(e, to))
					c.Kill()
					for range echoBytes {
						if _, _, err := e.next(); err != nil {
							t.Error(err)
						}
					}
					want = fabric.ErrPeerDied
				} else {
					c.Stop(t)
				}
				nothingLeft(t, e, "main")
				if err := e.Send(nil, to, 1); !errors.Is(err, want) {
					t.Errorf("afterwards: %v", err)
				}
			})
		}
		t.Run(fmt.Sprint("partner killed", mode), func(t *testing.T) {
			e := openedForC(t, fabric.Options{})
			p := started(t, "pinger")
			c := startC(t, program, e, "pinger", mode...)
			defer context.AfterFunc(e.over, func() { _ = p.Process.Kill() })()
			shmtest.Got(p.In.Write([]byte("\n"))).Or(t)
			p.Says(t, "playing")
			p.Kill()
			c.Says(t, "died")
			must(t, c.Wait())
			all, err := e.d.List() // the program in C collects nothing
			must(t, err)
			for _, n := range all {
				if err := collect.Remove(e.d, n.Name(), collect.Options{}); err != nil &&
					!errors.Is(err, cq.ErrBusy) {
					t.Errorf("%s: %v", n.Name(), err)
				}
			}
			nothingLeft(t, e, "main")
		})
	}
}
