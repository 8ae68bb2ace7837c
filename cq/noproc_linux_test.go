package cq_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

func init() { roles["without proc"] = childWithoutProc }

// TestWithoutProc: where there is no /proc each verb says so at once. It neither takes what is
// there for something that does not exist, nor waits for it.
func TestWithoutProc(t *testing.T) {
	if os.Geteuid() != 0 {
		shmtest.Require(t, "mount", errors.New("unmounting /proc needs root"))
	}
	d, q := create(t, cq.Options{Size: 8, Lifetime: cq.Persistent})
	n, err := cq.CreateCounter(cq.Named(d, "counter"), cq.CounterOptions{})
	must(t, err)
	t.Cleanup(func() { must(t, n.Close()) })
	cmd := shmtest.Child(t, "without proc", envQueue+"="+q.Name())
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	c := start(t, cmd)
	for line := c.line(t); line != "end"; line = c.line(t) {
		t.Error(line)
	}
	_ = c.stop(t)
}

func childWithoutProc() {
	need(syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""))
	need(syscall.Unmount("/proc", syscall.MNT_DETACH))
	d, err := shm.OpenDir("")
	need(err)
	name := os.Getenv(envQueue)
	for what, call := range map[string]func() error{
		"attach": func() error { // that would wait for ever
			_, err := cq.Attach(context.Background(), cq.Named(d, name), cq.WriterOptions{Wait: true})
			return err
		},
		"create": func() error { _, err := cq.Create(cq.Named(d, "new"), cq.Options{}); return err },
		"open":   func() error { _, err := cq.Open(cq.Named(d, "other"), cq.Options{}); return err },
		"events": func() error {
			_, err := cq.CreateEvents(cq.Named(d, "e"),
				cq.EventOptions{})
			return err
		},
		"counter": func() error {
			_, err := cq.AttachCounter(cq.Named(d, "counter"), cq.CounterOptions{})
			return err
		},
		"new counter": func() error {
			_, err := cq.CreateCounter(cq.Named(d, "c"), cq.CounterOptions{})
			return err
		},
		"addresses": func() error {
			_, err := cq.CreateAddresses(cq.Named(d, "v"), cq.AddressOptions{Count: 8})
			return err
		},
		"unnamed": func() error { _, err := cq.Create(cq.Unnamed("q"), cq.Options{}); return err },
		"signal":  func() error { return cq.SignalQueue(cq.Named(d, name)) },
	} {
		err := call()
		if !errors.Is(err, errors.ErrUnsupported) || errors.Is(err, os.ErrNotExist) ||
			!strings.Contains(err.Error(), "/proc") {
			say("%s: %v", what, err)
		}
	}
	need(d.Close())
	say("end")
	untilTold()
}

// TestOwnWriterNeedsNoPermission: a process reaches its own bell also where the kernel lets nobody
// take descriptors from processes.
func TestOwnWriterNeedsNoPermission(t *testing.T) {
	c := startChild(t, "nogetfd", envQueue+"="+queueName(t))
	for _, kind := range []string{"with a name", "without one"} {
		line, err := c.out.ReadString('\n')
		if err != nil || line != "cq: timed out 1 <nil>\n" {
			t.Errorf("%s: %q, %v", kind, line, err)
		}
	}
	must(t, c.Wait())
}
