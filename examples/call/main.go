// Command call has words counted by another process, and waits while nobody serves.
//
//	call                 serves calls, until it is interrupted
//	call "one two" three calls once for each text, and prints how many words it has
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"time"

	"github.com/shmring/shmring/fabric"
	"github.com/shmring/shmring/shm"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	dir, err := shm.OpenDir("")
	check(err)
	if len(os.Args) > 1 {
		ask(ctx, dir, os.Args[1:])
	} else {
		fmt.Println("serving")
		check(fabric.Serve(ctx, dir, "count", count))
	}
	check(dir.Close())
}

// count is run in a goroutine for each call.
func count(_ context.Context, request []byte) []byte {
	return fmt.Append(nil, len(bytes.Fields(request)), " words")
}

func ask(ctx context.Context, dir *shm.Dir, texts []string) {
	c, err := fabric.NewCaller(dir, "count")
	check(err)
	var reply [64]byte
	for _, text := range texts {
		n, err := c.Call(ctx, []byte(text), reply[:])
		for errors.Is(err, fabric.ErrNotRun) && ctx.Err() == nil { // nobody serves now
			time.Sleep(time.Millisecond)
			n, err = c.Call(ctx, []byte(text), reply[:])
		}
		check(err) // else it may have run
		fmt.Printf("%s: %s\n", text, reply[:n])
	}
	check(c.Close())
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
