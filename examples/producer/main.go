// Command producer posts three completions to the queue "orders". Several may run at once.
package main

import (
	"context"
	"log"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
)

func main() {
	dir, err := shm.OpenDir("") // $SHMRING_DIR, or /dev/shm/shmring-UID
	check(err)
	defer dir.Close()
	w, err := cq.Attach(context.Background(), cq.Named(dir, "orders"), cq.WriterOptions{Wait: true})
	check(err)
	defer w.Close()
	for id := uint64(1); id <= 3; id++ {
		e := cq.Entry{Context: id, Flags: cq.FlagSend | cq.FlagMsg}
		// It waits for room. cq.ErrClosed: the reader closed the queue; cq.ErrPeerGone: it died.
		check(w.PostContext(context.Background(), &e))
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
