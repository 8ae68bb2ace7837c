package cq_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

func init() { roles["lister"] = childLister }

// childLister says what it was started with.
func childLister() {
	for _, f := range listed() {
		say("%s", f)
	}
	say("end")
	untilTold()
}

// listed returns what the descriptors of this process are, but for what the runtime makes itself.
func listed() (out []string) {
	fds, err := os.ReadDir("/proc/self/fd")
	need(err)
	for _, f := range fds {
		target, err := os.Readlink("/proc/self/fd/" + f.Name())
		if err == nil && !strings.Contains(target, "/proc/") {
			out = append(out, f.Name()+" "+target)
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
	e := eventsFor(t, q, cq.EventOptions{Wait: cq.WaitFD})
	named := startChild(t, "poster", envQueue+"="+q.Name(), envCount+"=1")
	_ = named.line(t)
	_ = drain(t, q) // its death is watched
	anon := anonymous(t, cq.Options{Size: 8, Wait: cq.WaitFD})
	_ = startWriter(t, memfdSite, anon, nil)
	other := anonymousOthers(t, cq.Options{Size: 8, Wait: cq.WaitFD})
	_ = startWriter(t, othersSite, other, nil)
	r := startOther(t, "other reader")
	w, err := cq.Attach(soon(t), cq.Over(r.conn),
		cq.WriterOptions{Trust: cq.CrossUser, Allow: bothUsers()})
	must(t, err)
	must(t, w.BindEvents(e))
	t.Cleanup(func() { must(t, w.Close()) })
	s := waitSet(t, d, cq.WaitSetOptions{Wait: cq.WaitFD})
	addTo(t, s, q)
	_ = channel(t, d)
	n, err := cq.CreateCounter(cq.Named(d, "counter"), cq.CounterOptions{Wait: cq.WaitFD})
	must(t, err)
	t.Cleanup(func() { must(t, n.Close()) })

	fds, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	found := 0
	for _, f := range fds {
		var fd int
		_, _ = fmt.Sscan(f.Name(), &fd)
		target, err := os.Readlink("/proc/self/fd/" + f.Name())
		if err != nil {
			continue // that of the listing
		}
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
	for line := c.line(t); line != "end"; line = c.line(t) {
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
	w, err := cq.Attach(context.Background(), cq.Named(d, "exec-queue"), cq.WriterOptions{})
	need(err)
	need(w.Post(&cq.Entry{Context: 7}))
	e, err := cq.CreateEvents(cq.Named(d, "exec-events"), cq.EventOptions{Size: 8})
	need(err)
	_, err = cq.CreateAddresses(cq.Named(d, "exec-addresses"), cq.AddressOptions{Count: 8})
	need(err)
	c, err := cq.CreateCounter(cq.Named(d, "exec-counter"), cq.CounterOptions{})
	need(err)
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
		fail(errors.New("left: " + n.Name))
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
	d, err := shm.OpenDir("")
	need(err)
	ownAll(d)
	cmd, err := shmtest.Command(context.Background(), "another", envCount+"="+os.Getenv(envCount))
	need(err)
	need(syscall.Exec(cmd.Path, cmd.Args, cmd.Environ()))
}

// childAnother is the same process, and another program.
func childAnother() {
	acts := map[string]func(*shm.Dir) error{"1": haveAgain, "2": useAgain}
	if act := acts[os.Getenv(envCount)]; act != nil {
		d, err := shm.OpenDir("")
		need(err)
		if err := act(d); err != nil {
			say("%s", strings.ReplaceAll(err.Error(), "\n", "; "))
		}
		need(d.Close())
	}
	say("end")
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
			for line := c.line(t); line != "end"; line = c.line(t) {
				t.Error(line)
			}
			if err := acts[count].meanwhile(d); err != nil {
				t.Error(err)
			}
			c.kill()
			if err := acts[count].after(d); err != nil {
				t.Error(err)
			}
		})
	}
}
