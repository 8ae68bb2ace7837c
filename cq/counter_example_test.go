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

// Workers count what they have done, and one who waits for all of it sleeps until then.
func ExampleCounter() {
	dir, err := shm.OpenDir("")
	if err != nil {
		log.Fatal(err)
	}
	defer dir.Close()
	done, err := cq.CreateCounter(dir, "done", cq.CounterOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer done.Close()

	go func() { // as another process does
		mine, err := cq.OpenCounter(dir, "done", cq.CounterOptions{})
		if err != nil {
			log.Fatal(err)
		}
		defer mine.Close()
		for range 1000 {
			_ = mine.Add(1)
		}
		_ = mine.AddErr(1)
	}()

	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := done.Wait(ctx, 1000, cq.WaitOptions{}); err != nil {
		log.Fatal(err)
	}
	n, _ := done.Read()
	fmt.Println(n, "are done")

	// An error that was counted before does not end a wait: look at it.
	for failed, _ := done.ReadErr(); failed == 0; failed, _ = done.ReadErr() {
		if err := done.Wait(ctx, n+1, cq.WaitOptions{}); !errors.Is(err, cq.ErrAvail) {
			fmt.Println(err)
		}
	}
	// Output: 1000 are done
}
