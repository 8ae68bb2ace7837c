package cq_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
)

// A producer: it waits for the queue to be created, and for room while the reader is behind.
func Example_producer() {
	defer consumer("orders")() // in another process, until we are done

	dir, err := shm.OpenDir("")
	if err != nil {
		log.Fatal(err)
	}
	defer dir.Close()
	w, err := cq.Attach(context.Background(), dir, "orders", cq.WriterOptions{Wait: true})
	if err != nil {
		log.Fatal(err)
	}
	defer w.Close()
	for id := uint64(1); id <= 3; id++ {
		e := cq.Entry{Context: id, Flags: cq.FlagSend | cq.FlagMsg}
		if err := w.PostContext(context.Background(), &e); err != nil {
			log.Fatal(err) // the reader has closed the queue (cq.ErrClosed), or died (cq.ErrPeerGone)
		}
	}
	fmt.Println(w.Next(), "posted")
	// Output: 3 posted
}

// A consumer: it creates the queue and sleeps while there is nothing to read.
func Example_consumer() {
	dir, err := shm.OpenDir("")
	if err != nil {
		log.Fatal(err)
	}
	defer dir.Close()
	q, err := cq.Open(dir, "orders", cq.Options{Size: 4096})
	if err != nil {
		log.Fatal(err)
	}
	defer q.Close()
	producer("orders", 3) // in another process

	buf := make([]cq.Msg, 64)
	for seen := 0; seen < 3; {
		n, err := cq.ReadContext(context.Background(), q, buf, cq.ReadOptions{})
		if err != nil {
			log.Fatal(err)
		}
		for _, m := range buf[:n] {
			fmt.Println("done:", m.Context, m.Flags)
		}
		seen += n
	}
	// Output:
	// done: 0 MSG|SEND
	// done: 1 MSG|SEND
	// done: 2 MSG|SEND
}

// What ends a blocking read is in the error it returns.
func ExampleReadContext() {
	q := open("blocking")
	defer q.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	_, err := cq.ReadContext(ctx, q, make([]cq.Msg, 8), cq.ReadOptions{})
	fmt.Println(errors.Is(err, context.DeadlineExceeded))
	ctx, buf := context.Background(), make([]cq.Msg, 8)
	_, err = cq.ReadContext(ctx, q, buf, cq.ReadOptions{Timeout: time.Millisecond})
	fmt.Println(errors.Is(err, cq.ErrTimedOut))
	_ = q.Signal()
	_, err = cq.ReadContext(ctx, q, buf, cq.ReadOptions{})
	fmt.Println(errors.Is(err, cq.ErrSignaled))
	// Output:
	// true
	// true
	// true
}

// Failed operations come in order with the others and are taken one by one.
func ExampleQueue_ReadErr() {
	q := open("failures")
	defer q.Close()
	w, err := q.Writer()
	if err != nil {
		log.Fatal(err)
	}
	_ = w.Post(&cq.Entry{Context: 1})
	_ = w.PostError(&cq.ErrorEntry{Context: 2, Err: cq.ETrunc, OverrunBytes: 100})
	_ = w.Post(&cq.Entry{Context: 3})
	_ = w.Close()

	buf := make([]cq.Context, 8)
	for {
		n, err := cq.Read(q, buf)
		for _, c := range buf[:n] {
			fmt.Println("done", c.Context)
		}
		if errors.Is(err, cq.ErrAvail) {
			var failed cq.ErrorEntry
			if err := q.ReadErr(&failed); err != nil {
				log.Fatal(err)
			}
			fmt.Println("failed", failed.Context, failed.Err, failed.OverrunBytes)
		} else if err != nil {
			break // cq.ErrWouldBlock: nothing more
		}
	}
	// Output:
	// done 1
	// failed 2 truncation 100
	// done 3
}

// A threshold wakes the reader once for many entries; at the deadline it takes what is there.
func ExampleReadOptions() {
	q := open("batches")
	defer q.Close()
	producer("batches", 10)
	ctx, buf := context.Background(), make([]cq.Msg, 64)
	n, err := cq.ReadContext(ctx, q, buf, cq.ReadOptions{Threshold: 10})
	fmt.Println(n, err)
	producer("batches", 2)
	n, err = cq.ReadContext(ctx, q, buf, cq.ReadOptions{Threshold: 10, Timeout: time.Millisecond})
	fmt.Println(n, err)
	// Output:
	// 10 <nil>
	// 2 <nil>
}

// What was peeked stays in the queue until it was acted on.
func ExampleQueue_Peek() {
	q := open("inplace")
	defer q.Close()
	producer("inplace", 3)
	es, err := q.Peek(64)
	if err != nil {
		log.Fatal(err)
	}
	for i := range es {
		fmt.Println(es[i].Context, es[i].Meta.Seq(), q.Redelivered())
	}
	if err := q.Release(len(es)); err != nil {
		log.Fatal(err)
	}
	// Output:
	// 0 0 false
	// 1 1 false
	// 2 2 false
}

func open(name string) *cq.Queue {
	dir, err := shm.OpenDir("")
	if err != nil {
		log.Fatal(err)
	}
	defer dir.Close()
	q, err := cq.Create(dir, name, cq.Options{})
	if err != nil {
		log.Fatal(err)
	}
	return q
}
