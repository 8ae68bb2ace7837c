package cq_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
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
}

// inNamespace prepares a role in a PID namespace of its own, with a /proc that belongs to it.
func inNamespace(t *testing.T, role string, env ...string) *child {
	t.Helper()
	shmtest.RequireRoot(t, "pidns", "a PID namespace needs root")
	cmd := shmtest.Child(t, role, env...)
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
	cmd := shmtest.Needs(shmtest.Command(context.Background(), role, env...))
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
	n := shmtest.Needs(out.Read(line))
	return strings.TrimSpace(string(line[:n]))
}

// childReuser has a writer die, and its number given to others: to a process that has nothing to do
// with it, and to the next reader.
func childReuser() {
	ownProc()
	startThreads()
	d := shmtest.Needs(shm.OpenDir(""))
	q := shmtest.Needs(cq.Create(cq.Named(d, "reused"), cq.Options{Size: 8, MaxLanes: 1}))
	e := shmtest.Needs(cq.CreateEvents(cq.Named(d, "events"), cq.EventOptions{}))
	writer, out := grandchild("poster", envQueue+"=reused", envCount+"=1")
	said(out)
	pid := writer.Process.Pid
	need(writer.Process.Kill())
	_ = writer.Wait()
	time.Sleep(30 * time.Millisecond) // start times are told apart by the tick
	other, _ := withPID(pid, "poster", envQueue+"=nothing")
	need(q.BindEvents(e))
	p := nextDeath(e)
	say("death of the same number %v", p.PID == pid && p.End == 1)
	w := shmtest.Needs(cq.Attach(context.Background(), cq.Named(d, "reused"), cq.WriterOptions{}))
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

// nextDeath waits for an event about a peer.
func nextDeath(e *cq.EventQueue) cq.PeerEntry {
	ev := cq.Event{Payload: make([]byte, 0, 256)}
	shmtest.Needs(e.ReadContext(context.Background(), &ev, cq.ReadOptions{}))
	return shmtest.Needs(cq.ParsePeerEntry(ev.Payload))
}

// childReusedReader has the number of the writer whose death it is told of.
func childReusedReader() {
	d := shmtest.Needs(shm.OpenDir(""))
	q := shmtest.Needs(cq.Open(cq.Named(d, os.Getenv(envQueue)), cq.Options{Existing: true}))
	e := shmtest.Needs(cq.CreateEvents(cq.Named(d, "own"), cq.EventOptions{}))
	need(q.BindEvents(e))
	p := nextDeath(e)
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
		c.Says(t, want)
	}
	_ = c.Stop(t)
}

// childNamespaceReader is told of deaths in a namespace of its own.
func childNamespaceReader() {
	if os.Getenv(envCount) == "1" {
		ownProc()
	}
	d, err := shm.OpenDir("")
	need(err)
	q := shmtest.Needs(cq.Create(cq.Named(d, os.Getenv(envQueue)), cq.Options{Size: 8}))
	e := shmtest.Needs(cq.CreateEvents(cq.Named(d, "events"), cq.EventOptions{}))
	need(q.BindEvents(e))
	say("bound %d", os.Getpid())
	stop := toldToStop()
	for ev := (cq.Event{Payload: make([]byte, 0, 256)}); !stop.Load(); {
		if _, err = eqSread(e, &ev, 20*time.Millisecond); errors.Is(err, cq.ErrTimedOut) {
			continue
		}
		need(err)
		p := shmtest.Needs(cq.ParsePeerEntry(ev.Payload))
		say("death of %d, with %d", p.PID, p.End)
	}
	need(errors.Join(q.Close(), e.Close()))
}

// TestSiblingNamespaces: reader and writer in PID namespaces side by side, where both have the same
// number: a stopped writer is not dead, a killed one is, and its lane goes to the next.
func TestSiblingNamespaces(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	shmtest.Long(t)
	for i, proc := range []string{"inherited proc", "own proc"} {
		t.Run(proc, func(t *testing.T) {
			d, name := openDir(t), queueName(t)
			r := inNamespace(t, "namespace reader", envQueue+"="+name, envCount+"="+strconv.Itoa(i))
			r.Says(t, "bound 1")
			for n := range uint64(2) {
				c := inNamespace(t, "poster", envQueue+"="+name, envCount+"="+uintText(n+1))
				c.Says(t, "posted")
				c.Halt(t)
				time.Sleep(250 * time.Millisecond)
				w := attach(t, d, name) // the stopped one has the first lane
				if w.Lane() != 2 {
					t.Errorf("lane %d", w.Lane())
				}
				must(t, w.Close())
				c.Kill()
				r.Says(t, "death of 1, with "+uintText(n+1))
			}
			_ = r.Stop(t)
		})
	}
}

// TestForkedWriterDies: the copy of a writer's process that was made without exec keeps its lock,
// and hides its death from nobody; its lane is free when the copy has ended.
func TestForkedWriterDies(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	d, q := create(t, cq.Options{Size: 8})
	e := newsOf(t, q.BindEvents, cq.EventOptions{})
	c := startWriter(t, namedSite, q, nil)
	c.post(t, 0, 1)
	end := c.splits(t)
	c.Kill()
	wantDeath(t, e, q.FID(), cq.PeerWriter, c.Process.Pid)
	if got := drain(t, q); len(got) != 1 {
		t.Error(got)
	}
	if w := attach(t, d, q.Name()); w.Lane() != 2 {
		t.Errorf("lane %d while the copy has the lock of the first", w.Lane())
	}
	end()
	eventually(t, "the first lane to be free", func() bool {
		w := shmtest.Have(cq.Attach(t.Context(), cq.Named(d, q.Name()), cq.WriterOptions{})).In(t)
		return w.Lane() == 1
	})
	noNews(t, e)
}

func init() { roles["lister"] = childLister }

// childLister says what it was started with.
func childLister() {
	for _, f := range listed() {
		say("%s", f)
	}
	say("done")
	untilTold()
}

// listed returns what the descriptors of this process are, but for what the runtime makes itself.
func listed() (out []string) {
	for fd, target := range shmtest.Descriptors() {
		if !strings.Contains(target, "/proc/") {
			out = append(out, fmt.Sprint(fd, " ", target))
		}
	}
	return out
}

// ofTheLibrary are marks of descriptors that this package makes.
var ofTheLibrary = []string{"memfd:", "eventfd", "eventpoll", "pidfd", "socket:", "inotify"}

// TestExecInheritsNothing: with everything open that has descriptors, none of them is left open by
// an exec, so that no program which an application starts keeps a lock or a connection alive.
func TestExecInheritsNothing(t *testing.T) {
	shmtest.Conforms(t)
	d, q := create(t, cq.Options{Size: 8, Wait: cq.WaitFD})
	_ = attach(t, d, q.Name())
	e := newsOf(t, q.BindEvents, cq.EventOptions{Wait: cq.WaitFD})
	named := startChild(t, "poster", envQueue+"="+q.Name(), envCount+"=1")
	_ = named.Line(t)
	_ = drain(t, q) // its death is watched
	anon := anonymous(t, cq.Options{Size: 8, Wait: cq.WaitFD})
	_ = startWriter(t, memfdSite, anon, nil)
	other := anonymousOthers(t, cq.Options{Size: 8, Wait: cq.WaitFD})
	_ = startWriter(t, othersSite, other, nil)
	w := startReader(t, othersSite).attach()
	must(t, w.BindEvents(e))
	t.Cleanup(func() { must(t, w.Close()) })
	s := waitSet(t, d, cq.WaitSetOptions{Wait: cq.WaitFD})
	addTo(t, s, q)
	_ = channel(t, d)
	shmtest.Have(cq.CreateCounter(cq.Named(d, "counter"), cq.CounterOptions{Wait: cq.WaitFD})).In(t)

	found := 0
	for fd, target := range shmtest.Descriptors() {
		ours := strings.HasPrefix(target, d.Path()) || slices.ContainsFunc(ofTheLibrary,
			func(s string) bool { return strings.Contains(target, s) })
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if ours && fd > 2 && err == nil {
			if found++; flags&unix.FD_CLOEXEC == 0 {
				t.Errorf("descriptor %d, %s, is inherited by programs", fd, target)
			}
		}
	}
	if found < 20 {
		t.Errorf("only %d descriptors of the library", found)
	}
	c := startChild(t, "lister")
	for line := c.Line(t); line != "done"; line = c.Line(t) {
		if strings.Contains(line, "memfd:") || strings.Contains(line, d.Path()) ||
			strings.Contains(line, "pidfd") && !strings.Contains(line, "self") {
			t.Errorf("a program has descriptor %s", line)
		}
	}
}

func init() {
	roles["becomes another"] = childBecomesAnother
	roles["another"] = childAnother
}

// ownAll has something of each kind that a process can own, and an entry in each queue.
func ownAll(d *shm.Dir) {
	q, err := cq.Create(cq.Named(d, "exec-queue"), cq.Options{Size: 8, MaxLanes: 1, Wait: cq.WaitFD})
	need(err)
	w := shmtest.Needs(cq.Attach(context.Background(), cq.Named(d, "exec-queue"), cq.WriterOptions{}))
	need(w.Post(&cq.Entry{Context: 7}))
	e := shmtest.Needs(cq.CreateEvents(cq.Named(d, "exec-events"), cq.EventOptions{Size: 8}))
	shmtest.Needs(cq.CreateAddresses(cq.Named(d, "exec-addresses"), cq.AddressOptions{Count: 8}))
	c := shmtest.Needs(cq.CreateCounter(cq.Named(d, "exec-counter"), cq.CounterOptions{}))
	need(c.Add(3))
	s, err := cq.NewWaitSet(d, cq.WaitSetOptions{}) // a bell
	need(err)
	need(errors.Join(s.Add(q), s.Add(e)))
}

// haveAgain takes all of it from the program that this process was, or another.
func haveAgain(d *shm.Dir) (all error) {
	fail := func(err error) bool {
		all = errors.Join(all, err)
		return err != nil
	}
	if w, err := cq.Attach(context.Background(), cq.Named(d, "exec-queue"),
		cq.WriterOptions{}); !fail(err) {
		fail(errors.Join(w.Post(&cq.Entry{Context: 8}), w.Close())) // the only lane
	}
	if q, err := cq.Open(cq.Named(d, "exec-queue"), cq.Options{}); !fail(err) {
		dst := make([]cq.Msg, 8)
		if n, err := cq.Read(q, dst); n != 2 || dst[0].Context != 7 || dst[1].Context != 8 {
			fail(errors.Join(err, errors.New("entries are lost")))
		}
		fail(q.Close())
	}
	if e, err := cq.OpenEvents(cq.Named(d, "exec-events"), cq.EventOptions{}); !fail(err) {
		fail(e.Close())
	}
	if v, err := cq.OpenAddresses(cq.Named(d, "exec-addresses"),
		cq.AddressOptions{Existing: true}); !fail(err) {
		fail(v.Close())
	}
	if c, err := cq.AttachCounter(cq.Named(d, "exec-counter"), cq.CounterOptions{}); !fail(err) {
		if n, err := c.Read(); n != 3 || err != nil {
			fail(errors.New("the counter lost its value"))
		}
		fail(c.Close())
	}
	if s, err := cq.NewWaitSet(d, cq.WaitSetOptions{}); !fail(err) { // removes the dead bell
		fail(s.Close())
	}
	left, err := d.List()
	fail(err)
	for _, n := range left {
		fail(errors.New("left: " + n.Name()))
	}
	return all
}

// useAgain has the memory of what this process, or another, owned mapped again, as one that does
// not own it.
func useAgain(d *shm.Dir) error {
	_, err := cq.Attach(context.Background(), cq.Named(d, "exec-queue"), cq.WriterOptions{})
	_, err2 := cq.AttachEvents(context.Background(), cq.Named(d, "exec-events"), cq.WriterOptions{})
	_, err3 := cq.AttachAddresses(cq.Named(d, "exec-addresses"))
	_, err4 := cq.AttachCounter(cq.Named(d, "exec-counter"), cq.CounterOptions{})
	return errors.Join(err, err2, err3, err4)
}

// takeUsed takes what somebody uses who owned it as another program.
func takeUsed(d *shm.Dir) error {
	q, err := cq.Open(cq.Named(d, "exec-queue"), cq.Options{})
	if err != nil {
		return err
	}
	e, err := cq.OpenEvents(cq.Named(d, "exec-events"), cq.EventOptions{})
	if err != nil {
		return err
	}
	v, err := cq.OpenAddresses(cq.Named(d, "exec-addresses"), cq.AddressOptions{Existing: true})
	if err != nil {
		return err
	}
	return errors.Join(q.Detach(), e.Detach(), v.Detach())
}

func nothing(*shm.Dir) error { return nil }

func childBecomesAnother() {
	d := shmtest.Needs(shm.OpenDir(""))
	ownAll(d)
	cmd, err := shmtest.Command(context.Background(), "another", envCount+"="+os.Getenv(envCount))
	need(err)
	need(syscall.Exec(cmd.Path, cmd.Args, cmd.Environ()))
}

// childAnother is the same process, and another program.
func childAnother() {
	acts := map[string]func(*shm.Dir) error{"1": haveAgain, "2": useAgain}
	if act := acts[os.Getenv(envCount)]; act != nil {
		d := shmtest.Needs(shm.OpenDir(""))
		if err := act(d); err != nil {
			say("%s", strings.ReplaceAll(err.Error(), "\n", "; "))
		}
		need(d.Close())
	}
	say("done")
	untilTold()
}

// TestExecLeavesAll: a process that becomes another program can have again what it owned, and so
// can others: its locks and its memory are gone, though its number lives. That the new program has
// the same memory mapped again, as one that uses it, changes nothing. The test is alone: the
// bell of this process, which sets of all tests share, would stay in its directory.
func TestExecLeavesAll(t *testing.T) {
	shmtest.Conforms(t)
	acts := []struct{ meanwhile, after func(*shm.Dir) error }{{haveAgain, nothing}, {nothing, nothing},
		{takeUsed, haveAgain}}
	for count, who := range []string{"others", "itself", "others while it uses them"} {
		t.Run(who, func(t *testing.T) {
			d := openDir(t)
			c := startChild(t, "becomes another", envCount+"="+uintText(uint64(count)))
			complaints(t, c)
			must(t, acts[count].meanwhile(d))
			c.Kill()
			must(t, acts[count].after(d))
		})
	}
}
