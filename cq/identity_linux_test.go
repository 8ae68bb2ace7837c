package cq_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
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

func init() {
	roles["reuser"] = childReuser
	roles["reused reader"] = childReusedReader
	roles["namespace reader"] = childNamespaceReader
	roles["splitting poster"] = childSplittingPoster
}

// inNamespace prepares a role in a PID namespace of its own, with a /proc that belongs to it.
func inNamespace(t *testing.T, role string, env ...string) *child {
	t.Helper()
	if os.Geteuid() != 0 {
		shmtest.Require(t, "pidns", errors.New("a PID namespace needs root"))
	}
	cmd := shmtest.Child(t, role, append(env, "GORACE=atexit_sleep_ms=0")...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS}
	return start(t, cmd)
}

// ownProc mounts the /proc of the namespace that this process is the first of.
func ownProc() {
	need(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	need(unix.Mount("proc", "/proc", "proc", 0, ""))
}

// grandchild is a child's child in a role.
func grandchild(role string, env ...string) (*exec.Cmd, *os.File) {
	cmd, err := shmtest.Command(context.Background(), role, env...)
	need(err)
	r, w, err := os.Pipe()
	need(err)
	cmd.Stdout = w
	cmd.Stdin = os.Stdin
	need(cmd.Start())
	need(w.Close())
	return cmd, r
}

// startThreads has the runtime start threads that it may need later: none of them must take a
// number that a process is to get.
func startThreads() {
	var all sync.WaitGroup
	end := make(chan struct{})
	var begun sync.WaitGroup
	for range 24 {
		begun.Add(1)
		all.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			begun.Done()
			<-end
		})
	}
	begun.Wait()
	close(end)
	all.Wait()
}

// withPID starts a grandchild that has a number which was another's before.
func withPID(pid int, role string, env ...string) (*exec.Cmd, *os.File) {
	for range 200 {
		need(os.WriteFile("/proc/sys/kernel/ns_last_pid", []byte(strconv.Itoa(pid-1)), 0))
		cmd, out := grandchild(role, env...)
		if cmd.Process.Pid == pid {
			return cmd, out
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		need(out.Close())
	}
	need(fmt.Errorf("no process gets the number %d", pid))
	return nil, nil
}

func said(out *os.File) string {
	line := make([]byte, 200)
	n, err := out.Read(line)
	need(err)
	return strings.TrimSpace(string(line[:n]))
}

// childReuser has a writer die, and its number given to others: to a process that has nothing to do
// with it, and to the next reader.
func childReuser() {
	ownProc()
	startThreads()
	d, err := shm.OpenDir("")
	need(err)
	q, err := cq.Create(cq.Named(d, "reused"), cq.Options{Size: 8, MaxLanes: 1})
	need(err)
	e, err := cq.CreateEvents(cq.Named(d, "events"), cq.EventOptions{})
	need(err)
	writer, out := grandchild("poster", envQueue+"=reused", envCount+"=1")
	said(out)
	pid := writer.Process.Pid
	need(writer.Process.Kill())
	_ = writer.Wait()
	time.Sleep(30 * time.Millisecond) // start times are told apart by the tick
	other, _ := withPID(pid, "poster", envQueue+"=nothing")
	need(q.BindEvents(e))
	ev := cq.Event{Payload: make([]byte, 0, 256)}
	_, err = e.ReadContext(context.Background(), &ev, cq.ReadOptions{})
	need(err)
	p, err := cq.ParsePeerEntry(ev.Payload)
	need(err)
	say("death of the same number %v", p.PID == pid && p.End == 1)
	w, err := cq.Attach(context.Background(), cq.Named(d, "reused"), cq.WriterOptions{})
	need(err)
	say("lane %d at %d", w.Lane(), w.Next())
	need(w.Close())
	_ = other.Process.Kill()
	_ = other.Wait()

	writer, out = grandchild("poster", envQueue+"=reused", envCount+"=2")
	said(out)
	pid = writer.Process.Pid
	need(errors.Join(q.BindEvents(nil), q.Detach(), e.Close()))
	need(writer.Process.Kill())
	_ = writer.Wait()
	time.Sleep(30 * time.Millisecond)
	reader, out := withPID(pid, "reused reader", envQueue+"=reused")
	say("%s", said(out))
	need(reader.Wait())
}

// childReusedReader has the number of the writer whose death it is told of.
func childReusedReader() {
	d, err := shm.OpenDir("")
	need(err)
	q, err := cq.Open(cq.Named(d, os.Getenv(envQueue)), cq.Options{Existing: true})
	need(err)
	e, err := cq.CreateEvents(cq.Named(d, "own"), cq.EventOptions{})
	need(err)
	need(q.BindEvents(e))
	ev := cq.Event{Payload: make([]byte, 0, 256)}
	_, err = e.ReadContext(context.Background(), &ev, cq.ReadOptions{})
	need(err)
	p, err := cq.ParsePeerEntry(ev.Payload)
	need(err)
	n, err := cq.Read(q, make([]cq.Msg, 8))
	say("death of our number %v, %d, %v", p.PID == os.Getpid(), n, err)
	need(errors.Join(q.Close(), e.Close()))
}

// TestPIDReused: a number that means another process by now takes nobody for living or for dead.
func TestPIDReused(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	_ = openDir(t)
	c := inNamespace(t, "reuser")
	for _, want := range []string{"death of the same number true", "lane 1 at 1",
		"death of our number true, 2, <nil>"} {
		if got := c.line(t); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	_ = c.stop(t)
}

// childNamespaceReader is told of deaths in a namespace of its own.
func childNamespaceReader() {
	if os.Getenv(envCount) == "1" {
		ownProc()
	}
	d, err := shm.OpenDir("")
	need(err)
	q, err := cq.Create(cq.Named(d, os.Getenv(envQueue)), cq.Options{Size: 8})
	need(err)
	e, err := cq.CreateEvents(cq.Named(d, "events"), cq.EventOptions{})
	need(err)
	need(q.BindEvents(e))
	say("bound %d", os.Getpid())
	stop := toldToStop()
	for ev := (cq.Event{Payload: make([]byte, 0, 256)}); !stop.Load(); {
		if _, err = eqSread(e, &ev, 20*time.Millisecond); errors.Is(err, cq.ErrTimedOut) {
			continue
		}
		need(err)
		p, err := cq.ParsePeerEntry(ev.Payload)
		need(err)
		say("death of %d, with %d", p.PID, p.End)
	}
	need(errors.Join(q.Close(), e.Close()))
}

// TestSiblingNamespaces: reader and writer in PID namespaces side by side, where both have the same
// number: a stopped writer is not dead, a killed one is, and its lane goes to the next.
func TestSiblingNamespaces(t *testing.T) {
	shmtest.Conforms(t)
	shmtest.Long(t)
	for i, proc := range []string{"inherited proc", "own proc"} {
		t.Run(proc, func(t *testing.T) {
			d, name := openDir(t), queueName(t)
			r := inNamespace(t, "namespace reader", envQueue+"="+name, envCount+"="+strconv.Itoa(i))
			if got := r.line(t); got != "bound 1" {
				t.Fatal(got)
			}
			for n := range uint64(2) {
				c := inNamespace(t, "poster", envQueue+"="+name, envCount+"="+uintText(n+1))
				if got := c.line(t); got != "posted" {
					t.Fatal(got)
				}
				must(t, c.Process.Signal(syscall.SIGSTOP))
				time.Sleep(250 * time.Millisecond)
				w := attach(t, d, name) // the stopped one has the first lane
				if w.Lane() != 2 {
					t.Errorf("lane %d", w.Lane())
				}
				must(t, w.Close())
				c.kill()
				if got := r.line(t); got != "death of 1, with "+uintText(n+1) {
					t.Error(got)
				}
			}
			_ = r.stop(t)
		})
	}
}

// childSplittingPoster posts, and makes a copy of its process.
func childSplittingPoster() {
	d, err := shm.OpenDir("")
	need(err)
	w, err := cq.Attach(context.Background(), cq.Named(d, os.Getenv(envQueue)), cq.WriterOptions{})
	need(err)
	need(w.Post(&cq.Entry{}))
	pid, err := shmtest.Fork()
	need(err)
	say("copy %d", pid)
	untilTold()
}

// TestForkedWriterDies: the copy of a writer's process that was made without exec keeps its lock,
// and hides its death from nobody; its lane is free when the copy has ended.
func TestForkedWriterDies(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	d, q := create(t, cq.Options{Size: 8})
	e := eventsFor(t, q, cq.EventOptions{})
	c := startChild(t, "splitting poster", envQueue+"="+q.Name())
	var heir int
	if _, err := fmt.Sscanf(c.line(t), "copy %d", &heir); err != nil {
		t.Fatal(err)
	}
	end := func() { _ = syscall.Kill(heir, syscall.SIGKILL) }
	defer end()
	c.kill()
	wantDeath(t, e, q.FID(), cq.PeerWriter, c.Process.Pid)
	if got := drain(t, q); len(got) != 1 {
		t.Error(got)
	}
	if w := attach(t, d, q.Name()); w.Lane() != 2 {
		t.Errorf("lane %d while the copy has the lock of the first", w.Lane())
	}
	end()
	eventually(t, "the first lane to be free", func() bool {
		w, err := cq.Attach(t.Context(), cq.Named(d, q.Name()), cq.WriterOptions{})
		must(t, err)
		defer w.Close()
		return w.Lane() == 1
	})
	noNews(t, e)
}
