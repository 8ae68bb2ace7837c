package fabric_test

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/fabric"
	"github.com/shmring/shmring/internal/collect"
	"github.com/shmring/shmring/internal/shmtest"
)

// compile makes the peer that is written in C.
func compile(t *testing.T) string {
	t.Helper()
	cc, err := exec.LookPath("cc")
	shmtest.Require(t, "cc", err)
	out := filepath.Join(t.TempDir(), "peer")
	text, err := exec.CommandContext(t.Context(), cc, "-O2", "-Wall", "-o", out,
		filepath.Join("testdata", "peer.c")).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return out
}

// startC starts it, to echo what an endpoint here sends it.
func startC(t *testing.T, program, dir, other string, args ...string) *child {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, append([]string{dir, "c", other}, args...)...)
	in, err := cmd.StdinPipe()
	noError(t, err)
	out, err := cmd.StdoutPipe()
	noError(t, err)
	cmd.Stderr = os.Stderr
	noError(t, cmd.Start())
	c := &child{cmd, in, bufio.NewReader(out)}
	c.says(t, "ready")
	return c
}

// pinger plays with the process in C until it is killed.
func pinger() {
	e, err := open("pinger", fabric.Options{})
	must(err)
	fmt.Println("ready")
	_, err = os.Stdin.Read(make([]byte, 1))
	must(err)
	to, err := e.Resolve("c")
	must(err)
	for i := 0; ; i++ {
		must(pingPong(e, to, i))
		if i == 50 {
			fmt.Println("playing")
		}
	}
}

// TestPeerInC: a program that knows the layout by docs/fabric.md alone, awake and asleep, closed by
// itself, and killed on either side.
func TestPeerInC(t *testing.T) {
	program := compile(t)
	for _, mode := range [][]string{{"spin"}, nil} {
		for _, end := range []string{"closes", "killed"} {
			t.Run(fmt.Sprint(end, mode), func(t *testing.T) {
				e := opened(t, "main", fabric.Options{})
				c := startC(t, program, e.d.Path(), "main", mode...)
				to := e.knows(t, "c")
				for i := range 500 {
					noError(t, pingPong(e, to, i))
					if mode == nil && i%100 == 0 {
						time.Sleep(time.Millisecond) // both sleep
					}
				}
				noError(t, e.TRecv(nil, to, 5, 0, 7))
				noError(t, e.SendMsg(&fabric.Msg{Addr: to, Tag: 5, Data: 6,
					Flags: cq.FlagTagged | cq.FlagRemoteCQData | cq.FlagInjectCall}))
				if c := completes(t, e); c.Tag != 5 || c.Data != 6 ||
					c.Flags != cq.FlagRecv|cq.FlagTagged|cq.FlagRemoteCQData {
					t.Errorf("%+v", c)
				}
				want := fabric.ErrPeerClosed
				if end == "killed" {
					c.kill(t)
					want = fabric.ErrPeerDied
				} else {
					c.ends(t)
				}
				nothingLeft(t, e, "main")
				if err := e.Send(nil, to, 1); !errors.Is(err, want) {
					t.Errorf("afterwards: %v", err)
				}
			})
		}
		t.Run(fmt.Sprint("partner killed", mode), func(t *testing.T) {
			e := opened(t, "main", fabric.Options{})
			p := started(t, "pinger")
			c := startC(t, program, e.d.Path(), "pinger", mode...)
			_, err := p.in.Write([]byte("\n"))
			noError(t, err)
			p.says(t, "playing")
			p.kill(t)
			c.says(t, "died")
			noError(t, c.Wait())
			all, err := e.d.List() // the program in C collects nothing
			noError(t, err)
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
