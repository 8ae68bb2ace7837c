package cq_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
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
	_ = startJoiner(t, anon)
	other := anonymousOthers(t, cq.Options{Size: 8, Wait: cq.WaitFD})
	_ = startWriterOther(t, other)
	r := startOther(t, "other reader")
	w, err := cq.AttachConn(soon(t), r.conn,
		cq.WriterOptions{Trust: cq.CrossUser, Allow: bothUsers()})
	must(t, err)
	must(t, w.BindEvents(e))
	t.Cleanup(func() { must(t, w.Close()) })
	s := waitSet(t, d, cq.WaitSetOptions{Wait: cq.WaitFD})
	addTo(t, s, q)
	_ = channel(t, d)
	n, err := cq.CreateCounter(d, "counter", cq.CounterOptions{Wait: cq.WaitFD})
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
