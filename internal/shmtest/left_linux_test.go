package shmtest

import (
	"runtime"
	"strings"
	"syscall"
	"testing"
)

func TestThreadInNamespace(t *testing.T) {
	home := ownNamespaces()
	done := make(chan struct{})
	entered := make(chan error)
	go enter(entered, done)
	err := <-entered
	found := strayThreads(home)
	close(done)
	Require(t, "netns", err)
	if len(found) != 1 || !strings.Contains(found[0], "net:[") {
		t.Errorf("with a thread in a namespace: %v", found)
	}
	if left := settle(func() []string { return strayThreads(home) }); len(left) != 0 {
		t.Errorf("after its end: %v", left)
	}
}

// enter takes a thread to a new namespace until done is closed; the thread ends then. The first one
// of a process cannot end, so it is kept from being that.
func enter(entered chan<- error, done <-chan struct{}) {
	runtime.LockOSThread()
	if syscall.Gettid() == syscall.Getpid() {
		defer runtime.UnlockOSThread()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			enter(entered, done)
		}()
		<-ended
		return
	}
	entered <- syscall.Unshare(syscall.CLONE_NEWNET)
	<-done
}
