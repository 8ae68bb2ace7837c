package cq_test

import (
	"context"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"

	"github.com/shmring/shmring/cq"
)

func init() { roles["example caller"] = call }

// call is the whole other program. It knows where the socket is, which another process of its user
// can be told in any way.
func call() {
	where := &net.UnixAddr{Name: os.Getenv(envName), Net: "unix"}
	conn, err := net.DialUnix("unix", nil, where)
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	w, err := cq.AttachConn(context.Background(), conn, cq.WriterOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer w.Close()
	if err := w.Post(&cq.Entry{Context: 7}); err != nil {
		log.Fatal(err)
	}
}

// A queue without a name: its reader hands it to whoever connects to a socket.
func ExampleQueue_Serve() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	where := &net.UnixAddr{Name: filepath.Join(dir, "socket"), Net: "unix"}

	q, err := cq.CreateAnonymous("orders", cq.Options{})
	if err != nil {
		log.Fatal(err)
	}
	l, err := net.ListenUnix("unix", where)
	if err != nil {
		log.Fatal(err)
	}
	served := make(chan error)
	go func() { served <- q.Serve(l, func(err error) { log.Print(err) }) }()

	other := another("example caller", envName+"="+where.Name) // an *exec.Cmd that runs call
	if err := other.Start(); err != nil {
		log.Fatal(err)
	}

	buf := make([]cq.Context, 16)
	n, err := cq.ReadContext(context.Background(), q, buf, cq.ReadOptions{})
	fmt.Println(n, buf[0].Context, err)
	if err := other.Wait(); err != nil {
		log.Fatal(err)
	}
	if err := q.Close(); err != nil {
		log.Fatal(err)
	}
	fmt.Println(<-served)
	_ = l.Close()
	// Output:
	// 1 7 <nil>
	// cq: queue is closed: open or attach again to go on
}
