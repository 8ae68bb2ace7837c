// Command restart reads a queue in place, and may be killed at any moment. Its next run takes the
// queue over and gets again, with a mark, what the killed one had not released.
//
//	restart NAME   prints each entry of the queue, and releases it at Enter
package main

import (
	"bufio"
	"context"
	"fmt"
	"log"
	"os"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
)

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: restart NAME")
	}
	dir, err := shm.OpenDir("")
	check(err)
	defer dir.Close()
	// What is in a persistent queue stays, also when nobody uses it.
	q, err := cq.Open(cq.Named(dir, os.Args[1]), cq.Options{Lifetime: cq.Persistent})
	check(err)
	defer q.Detach()
	fmt.Println("reading")
	for keys := bufio.NewScanner(os.Stdin); ; {
		es, err := q.PeekContext(context.Background(), 1)
		check(err)
		fmt.Println(es[0].Context, "again:", q.Redelivered())
		more := keys.Scan() // act on it here
		check(q.Release(1))
		if !more {
			return
		}
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
