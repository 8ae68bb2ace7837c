// Command counter has processes add to a counter, and one wait for a value of it.
//
//	counter wait 3  makes the counter, and waits until it is at least 3
//	counter add 2   adds 2, while another process waits
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"strconv"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
)

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: counter wait|add NUMBER")
	}
	n, err := strconv.ParseUint(os.Args[2], 10, 64)
	check(err)
	dir, err := shm.OpenDir("")
	check(err)
	defer dir.Close()
	if os.Args[1] == "wait" {
		wait(dir, n)
	} else {
		add(dir, n)
	}
}

func wait(dir *shm.Dir, n uint64) {
	c, err := cq.CreateCounter(cq.Named(dir, "jobs"), cq.CounterOptions{})
	check(err)
	defer c.Close()
	fmt.Println("waiting")
	check(c.Wait(context.Background(), n, cq.WaitOptions{})) // cq.ErrAvail: somebody called AddErr
	value, err := c.Read()
	check(err)
	fmt.Println("reached:", value)
}

func add(dir *shm.Dir, n uint64) {
	c, err := cq.AttachCounter(cq.Named(dir, "jobs"), cq.CounterOptions{})
	check(err)
	defer c.Close()
	check(c.Add(n))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
