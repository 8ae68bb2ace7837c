package cq_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
)

// An event queue reports connections, registrations and peers; failures come in order and are taken
// with ReadErr.
func ExampleEventQueue() {
	dir, err := shm.OpenDir("")
	if err != nil {
		fatal(err)
	}
	defer dir.Close()
	eq, err := cq.CreateEvents(cq.Named(dir, "control"), cq.EventOptions{Write: true})
	if err != nil {
		fatal(err)
	}
	defer eq.Close()

	// Another process, as a rule, writes through a lane of its own.
	peer, err := cq.AttachEvents(context.Background(), cq.Named(dir, "control"), cq.WriterOptions{})
	if err != nil {
		fatal(err)
	}
	defer peer.Close()
	endpoint := cq.FID{Kind: cq.FIDPassiveEndpoint, ID: 7, Generation: 1}
	request := cq.CMEntry{Data: []byte("let me in")}
	payload, err := request.AppendTo(nil)
	if err != nil {
		fatal(err)
	}
	_, _ = peer.Write(&cq.Event{Event: cq.EventConnReq, FID: endpoint, Payload: payload})
	_, _ = peer.WriteErr(&cq.EventError{FID: endpoint, Context: 9, Err: cq.EOther})

	ev := cq.Event{Payload: make([]byte, 0, eq.Options().DataMaxBytes)}
	for {
		ctx := context.Background()
		switch _, err := eq.ReadContext(ctx, &ev, cq.ReadOptions{Timeout: 10 * time.Millisecond}); {
		case err == nil && ev.Event == cq.EventConnReq:
			c, err := cq.ParseCMEntry(ev.Payload)
			fmt.Printf("%v: %q %v\n", ev.FID.Kind, c.Data, err)
		case errors.Is(err, cq.ErrAvail):
			var failed cq.EventError
			if _, err := eq.ReadErr(&failed, 0); err != nil {
				fatal(err)
			}
			fmt.Println("operation", failed.Context, "failed:", failed.Err)
		case errors.Is(err, cq.ErrTimedOut):
			return
		case err != nil:
			fatal(err)
		}
	}
	// Output:
	// passive endpoint: "let me in" <nil>
	// operation 9 failed: unspecified error
}

// With a handler nobody reads: every event is a call.
func ExampleCreateEvents_handler() {
	dir, err := shm.OpenDir("")
	if err != nil {
		fatal(err)
	}
	defer dir.Close()
	last := make(chan struct{})
	eq, err := cq.CreateEvents(cq.Named(dir, "calls"), cq.EventOptions{Write: true,
		Handler: func(ev *cq.Event, err error) {
			if err != nil {
				fmt.Println(err)
				return
			}
			fmt.Println(ev.Event, ev.Context)
			if ev.Context == 2 {
				close(last)
			}
		}})
	if err != nil {
		fatal(err)
	}
	_, _ = eq.Write(&cq.Event{Event: cq.EventMRComplete, Context: 1})
	_, _ = eq.Write(&cq.Event{Event: cq.EventUser + 5, Context: 2})
	<-last
	if err := eq.Close(); err != nil { // waits for the call that runs
		fatal(err)
	}
	// Output:
	// memory registered 1
	// user event 5 2
}

// A queue that reports to an event queue is closed before that. Deferred, one call does it in the
// right order, whatever was opened by then.
func ExampleCloseAll() {
	dir, err := shm.OpenDir("")
	if err != nil {
		fatal(err)
	}
	var q *cq.Queue
	var events *cq.EventQueue
	defer func() { fmt.Println("all closed:", cq.CloseAll(dir, q, events)) }()
	if q, err = cq.Create(cq.Named(dir, "reports"), cq.Options{}); err != nil {
		fatal(err)
	}
	if events, err = cq.CreateEvents(cq.Named(dir, "reported"), cq.EventOptions{}); err != nil {
		fatal(err)
	}
	if err := q.BindEvents(events); err != nil {
		fatal(err)
	}
	fmt.Println(errors.Is(events.Close(), cq.ErrBusy)) // as a deferred call would do it
	// Output:
	// true
	// all closed: <nil>
}

func fatal(err error) {
	fmt.Println(err)
	os.Exit(1)
}
