package fabric_test

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/fabric"
	"github.com/shmring/shmring/internal/shmtest"
)

// starved receives from somebody while this process may have no more descriptors, and then.
func starved() {
	e := shmtest.Needs(open("starved", fabric.Options{}))
	buf := make([]byte, 16)
	need(e.Recv(buf, 1))
	fmt.Println("ready")
	_, _ = fmt.Scanln()
	restore := shmtest.LimitFiles(0)
	for range 3 {
		shmtest.Needs(e.Progress())
	}
	fmt.Println(e.Stats().Refused, "refused")
	restore()
	c, _, err := e.next() // it sleeps
	need(err)
	fmt.Println(string(buf[:c.Len]))
	untilTold()
	need(e.close())
}

// unpolled receives from somebody while the kernel watches no more descriptors for this process.
func unpolled() {
	e := shmtest.Needs(open("unpolled", fabric.Options{}))
	need(shmtest.Forbid(unix.SYS_EPOLL_CTL, unix.ENOSPC))
	fmt.Println("ready")
	_, _ = fmt.Scanln()
	for range 3 {
		shmtest.Needs(e.Progress())
	}
	fmt.Println(e.Stats().Refused, "refused")
	untilTold()
	need(e.close())
}

// TestUnpolled: who can follow no process now does not refuse a sender for good.
func TestUnpolled(t *testing.T) {
	e := opened(t, "main", fabric.Options{})
	c := started(t, "unpolled")
	must(t, e.Send([]byte("hello"), e.knows(t, "unpolled"), 1))
	fmt.Fprintln(c.In)
	c.Says(t, "0 refused")
	c.Stop(t)
}

// TestStarved: who has no descriptor for a sender that is new takes its messages when it has.
func TestStarved(t *testing.T) {
	e := opened(t, "main", fabric.Options{})
	c := started(t, "starved")
	to := e.knows(t, "starved")
	must(t, e.Send([]byte("hello"), to, 1))
	fmt.Fprintln(c.In)
	c.Says(t, "0 refused")
	c.Says(t, "hello")
	completes(t, e)
	c.Stop(t)
}
