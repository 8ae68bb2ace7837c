// Command events reads an event queue: what other processes report, and which of them died.
//
//	events              reads, until it is interrupted
//	events hello world  writes an event for each word, and stays until it is interrupted or killed
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

// EventWord is an event of this program. Numbers from EventUser on are free for programs.
const EventWord = cq.EventUser + 1

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	dir, err := shm.OpenDir("")
	check(err)
	defer dir.Close()
	if len(os.Args) > 1 {
		write(ctx, dir, os.Args[1:])
	} else {
		read(ctx, dir)
	}
}

func read(ctx context.Context, dir *shm.Dir) {
	events, err := cq.OpenEvents(cq.Named(dir, "news"), cq.EventOptions{})
	check(err)
	defer events.Close()
	check(events.BindEvents(events)) // report deaths of its own writers
	fmt.Println("reading")
	ev := cq.Event{Payload: make([]byte, 0, events.Options().DataMaxBytes)}
	for {
		_, err := events.ReadContext(ctx, &ev, cq.ReadOptions{})
		if ctx.Err() != nil {
			return
		}
		check(err)
		switch ev.Event {
		case EventWord:
			fmt.Printf("%d: %s\n", ev.Data, ev.Payload)
		case cq.EventPeerDeath:
			peer, err := cq.ParsePeerEntry(ev.Payload)
			check(err)
			fmt.Println("process died:", peer.PID)
		}
	}
}

func write(ctx context.Context, dir *shm.Dir, words []string) {
	w, err := cq.AttachEvents(ctx, cq.Named(dir, "news"), cq.WriterOptions{Wait: true})
	check(err)
	defer w.Close() // who closes did not die
	for i, word := range words {
		_, err := w.Write(&cq.Event{Event: EventWord, Data: uint64(i), Payload: []byte(word)})
		check(err)
	}
	<-ctx.Done()
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
