// Command waitset serves many queues by one goroutine. The set says which of them have something.
//
//	waitset bids asks   makes these queues, and prints what is posted, until it is interrupted
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	dir, err := shm.OpenDir("")
	check(err)
	defer dir.Close()
	set, err := cq.NewWaitSet(dir, cq.WaitSetOptions{})
	check(err)
	defer set.Close()
	for _, name := range os.Args[1:] {
		q, err := cq.Create(cq.Named(dir, name), cq.Options{UserContext: name})
		check(err)
		defer q.Close()
		check(set.Add(q))
		defer set.Remove(q)
	}
	fmt.Println("waiting")
	ready := make([]cq.Waitable, 8)
	buf := make([]cq.Msg, 64)
	for {
		n, err := set.Wait(ctx, ready, cq.WaitOptions{})
		if ctx.Err() != nil {
			return
		}
		check(err)
		for _, m := range ready[:n] {
			k, err := cq.Read(m.(*cq.Queue), buf) // the rest, if any, is ready at the next Wait
			if !errors.Is(err, cq.ErrWouldBlock) {
				check(err)
			}
			for _, done := range buf[:k] {
				fmt.Println(m.UserContext(), done.Context)
			}
		}
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
