package cq_test

import (
	"context"
	"fmt"
	"log"
	"maps"
	"os"
	"os/exec"
	"strconv"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// produceOrders is the whole first program. It may be started before the other one: it waits for
// the queue. Several can run at once, each with a lane of its own.
func produceOrders() {
	dir, err := shm.OpenDir("") // the same directory in both programs
	if err != nil {
		log.Fatal(err)
	}
	defer dir.Close()
	w, err := cq.Attach(context.Background(), cq.Named(dir, "orders"), cq.WriterOptions{Wait: true})
	if err != nil {
		log.Fatal(err)
	}
	defer w.Close()
	for id := uint64(1); id <= 3; id++ {
		e := cq.Entry{Context: id, Flags: cq.FlagSend | cq.FlagMsg, Len: id * 100,
			Data: uint64(os.Getpid())}
		if err := w.PostContext(context.Background(), &e); err != nil { // it waits for room
			log.Fatal(err) // the reader has closed the queue (cq.ErrClosed), or died (cq.ErrPeerGone)
		}
	}
}

// Two programs, each a process of its own: one posts orders, the other one, which is the body of
// the example, sleeps until there are some and reads them.
func Example_twoProcesses() {
	dir, err := shm.OpenDir("")
	if err != nil {
		log.Fatal(err)
	}
	defer dir.Close()
	other := another("example orders") // an *exec.Cmd of the program above
	if err := other.Start(); err != nil {
		log.Fatal(err)
	}
	q, err := cq.Open(cq.Named(dir, "orders"), cq.Options{})
	if err != nil {
		log.Fatal(err)
	}

	buf := make([]cq.Data, 64)
	for seen := 0; seen < 3; {
		n, err := cq.ReadContext(context.Background(), q, buf, cq.ReadOptions{})
		if err != nil {
			log.Fatal(err)
		}
		for _, e := range buf[:n] {
			fmt.Println("done:", e.Context, e.Flags, e.Len, e.Data == uint64(other.Process.Pid))
		}
		seen += n
	}

	if err := other.Wait(); err != nil {
		log.Fatal(err)
	}
	if err := q.Close(); err != nil {
		log.Fatal(err)
	}
	// Output:
	// done: 1 MSG|SEND 100 true
	// done: 2 MSG|SEND 200 true
	// done: 3 MSG|SEND 300 true
}

// What examples call another process is one: this binary, started in one of these roles.
func init() {
	maps.Copy(roles, map[string]func(){
		"example orders":   produceOrders,
		"example producer": produce,
	})
}

const (
	envName   = "SHMRING_EXAMPLE_NAME"
	envNumber = "SHMRING_EXAMPLE_NUMBER"
)

// another prepares a process in a role. Under the race detector it does not take its time to end.
func another(role string, env ...string) *exec.Cmd {
	cmd, err := shmtest.Command(context.Background(), role, env...)
	if err != nil {
		log.Fatal(err)
	}
	return cmd
}

// producer has another process post n entries, and waits until it did.
func producer(name string, n int) {
	cmd := another("example producer", envName+"="+name, envNumber+"="+strconv.Itoa(n))
	if err := cmd.Run(); err != nil {
		log.Fatal(err)
	}
}

func produce() {
	dir, err := shm.OpenDir("")
	if err != nil {
		log.Fatal(err)
	}
	w, err := cq.Attach(context.Background(), cq.Named(dir, os.Getenv(envName)), cq.WriterOptions{})
	if err != nil {
		log.Fatal(err)
	}
	n, err := strconv.Atoi(os.Getenv(envNumber))
	if err != nil {
		log.Fatal(err)
	}
	for i := range uint64(n) {
		if err := w.Post(&cq.Entry{Context: i, Flags: cq.FlagSend | cq.FlagMsg}); err != nil {
			log.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		log.Fatal(err)
	}
}
