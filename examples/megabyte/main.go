// Command megabyte sends a megabyte to another process, and neither copies it.
//
//	megabyte         receives, until it is interrupted
//	megabyte hello   fills a megabyte with the word, and sends it
package main

import (
	"bytes"
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/fabric"
	"github.com/shmring/shmring/shm"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	sends := len(os.Args) > 1
	name := "megabytes"
	if sends {
		name = fmt.Sprint("sends-", os.Getpid())
	}
	dir, e, q, w := open(name)
	if sends {
		to, err := e.Resolve("megabytes")
		check(err)
		b, err := e.Alloc(1 << 20) // memory that its peers have mapped
		check(err)
		for at := 0; at < len(b); at += copy(b[at:], os.Args[1]) {
		}
		check(e.Send(b, to, 1)) // only a header travels
		await(ctx, q)           // the receiver has given it back
		check(e.Free(b))
		fmt.Println("sent")
	}
	for !sends {
		// The other process:
		check(e.RecvMsg(&fabric.Msg{Addr: fabric.Anybody, Flags: cq.FlagFrame}))
		fmt.Println("receiving")
		c, ok := await(ctx, q)
		if !ok {
			break
		}
		b, err := e.Payload(&c) // in the sender's memory, mapped for reading only
		check(err)
		fmt.Println(len(b), "bytes, with", bytes.Count(b, []byte("hello")), "times hello")
		check(e.Release(c)) // the sender has it back
	}
	check(cq.CloseAll(e, q, w, dir))
}

// open makes an endpoint, and the queue that it completes into.
func open(name string) (*shm.Dir, *fabric.Endpoint, *cq.Queue, *cq.Writer) {
	dir, err := shm.OpenDir("")
	check(err)
	q, err := cq.Create(cq.Unnamed("done"), cq.Options{})
	check(err)
	w, err := q.Writer()
	check(err)
	e, err := fabric.Open(dir, name, fabric.Options{Transmit: w, Receive: w, Pool: 1 << 20,
		Progress: []*cq.Queue{q}})
	check(err)
	return dir, e, q, w
}

// await sleeps until an operation has ended, well.
func await(ctx context.Context, q *cq.Queue) (c cq.Entry, ok bool) {
	var dst [1]cq.Entry
	_, err := cq.ReadContext(ctx, q, dst[:], cq.ReadOptions{})
	if ctx.Err() == nil {
		check(err)
	}
	return dst[0], err == nil
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
