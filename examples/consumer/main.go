// Command consumer makes the queue "orders" and prints its completions, until it is interrupted.
package main

import (
	"context"
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
	dir, err := shm.OpenDir("") // the directory of the producer
	check(err)
	defer dir.Close()
	q, err := cq.Open(cq.Named(dir, "orders"), cq.Options{Size: 4096})
	check(err)
	defer q.Close()
	buf := make([]cq.Msg, 64)
	for {
		n, err := cq.ReadContext(ctx, q, buf, cq.ReadOptions{}) // it sleeps while the queue is empty
		if ctx.Err() != nil {
			return
		}
		check(err)
		for _, m := range buf[:n] {
			fmt.Println("done:", m.Context, m.Flags)
		}
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
