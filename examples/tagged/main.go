// Command tagged asks another process about words, by tagged messages, and takes the answers in an
// order of its own.
//
//	tagged             answers, until it is interrupted
//	tagged one three   asks about all words at once, and takes the last answer first
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/fabric"
	"github.com/shmring/shmring/shm"
)

const anyTag = ^uint64(0) // bits to ignore: all

// end is an endpoint and the queue that it completes into.
type end struct {
	*fabric.Endpoint
	q *cq.Queue
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	dir, err := shm.OpenDir("")
	check(err)
	q, err := cq.Create(cq.Unnamed("done"), cq.Options{Format: cq.FormatTagged})
	check(err)
	w, err := q.Writer()
	check(err)
	name := "words"
	if len(os.Args) > 1 {
		name = fmt.Sprint("asks-", os.Getpid())
	}
	e, err := fabric.Open(dir, name, fabric.Options{Receive: w, Progress: []*cq.Queue{q}})
	check(err)
	if len(os.Args) > 1 {
		end{e, q}.ask(ctx, os.Args[1:])
	} else {
		end{e, q}.answer(ctx)
	}
	check(cq.CloseAll(e, q, w, dir))
}

// answer tells how long each word is. A question is the address of who asks, and a word; its tag is
// that of the answer.
func (e end) answer(ctx context.Context) {
	fmt.Println("answering")
	for buf := make([]byte, 256); ; {
		check(e.TRecv(buf, fabric.Anybody, 0, anyTag, 0))
		c, ok := e.completion(ctx)
		if !ok {
			return
		}
		from, err := fabric.ParseAddress(buf[:fabric.AddressBytes])
		check(err)
		to, err := e.Insert(from) // the same number each time
		check(err)
		e.send(ctx, to, c.Tag, fmt.Append(nil, c.Len-fabric.AddressBytes, " letters"))
	}
}

// ask takes a word by its tag, whatever came before it.
func (e end) ask(ctx context.Context, words []string) {
	to, err := e.Resolve("words")
	check(err)
	for i, word := range words {
		e.send(ctx, to, uint64(i), append(e.Address().Append(nil), word...))
	}
	for i := len(words) - 1; i >= 0; i-- {
		var buf [32]byte
		check(e.TRecv(buf[:], to, uint64(i), 0, 0))
		if c, ok := e.completion(ctx); ok {
			fmt.Printf("%s: %s\n", words[i], buf[:c.Len])
		}
	}
}

// send waits for room if there is none. Nobody is told of the end (FI_INJECT).
func (e end) send(ctx context.Context, to cq.Addr, tag uint64, text []byte) {
	check(e.SendContext(ctx, &fabric.Msg{Buf: text, Addr: to, Tag: tag,
		Flags: cq.FlagTagged | cq.FlagInjectCall}))
}

// completion moves the endpoint, and sleeps until a receive has ended.
func (e end) completion(ctx context.Context) (c cq.Tagged, ok bool) {
	var dst [1]cq.Tagged
	_, err := cq.ReadContext(ctx, e.q, dst[:], cq.ReadOptions{})
	if ctx.Err() != nil {
		return c, false
	}
	check(err)
	return dst[0], true
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
