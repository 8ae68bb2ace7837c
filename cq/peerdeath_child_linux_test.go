package cq_test

import (
	"context"
	"io"
	"os"
	"strconv"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
)

func init() {
	roles["poster"] = childPoster
	roles["event poster"] = childEventPoster
	roles["mourned reader"] = childMournedReader
	roles["mourner"] = childMourner
}

func uintText(n uint64) string { return strconv.FormatUint(n, 10) }

func untilTold() { _, _ = io.Copy(io.Discard, os.Stdin) }

// childPoster posts until its lane stands at an index, and closes when it is told to.
func childPoster() {
	d, err := shm.OpenDir("")
	need(err)
	w, err := cq.Attach(context.Background(), d, os.Getenv(envQueue), cq.WriterOptions{})
	need(err)
	for w.Next() < uint64(number(envCount, 0)) {
		need(w.Post(&cq.Entry{Context: w.Next()}))
	}
	say("posted")
	untilTold()
	need(w.Close())
}

// childEventPoster writes one event.
func childEventPoster() {
	d, err := shm.OpenDir("")
	need(err)
	w, err := cq.AttachEvents(context.Background(), d, os.Getenv(envQueue), cq.WriterOptions{})
	need(err)
	_, err = w.Write(&cq.Event{Event: cq.EventUser})
	need(err)
	say("posted")
	untilTold()
	need(w.Close())
}

// childMournedReader adopts a queue and reads its first entry, if nobody has.
func childMournedReader() {
	d, err := shm.OpenDir("")
	need(err)
	q, err := cq.Adopt(d, os.Getenv(envQueue), cq.Options{})
	need(err)
	say("reading")
	if q.Stats().Read == 0 {
		_, err = cq.ReadContext(context.Background(), q, make([]cq.Msg, 1), cq.ReadOptions{})
		need(err)
		say("read")
	}
	untilTold()
}

// childMourner adopts a queue and the event queue beside it, binds one to the other, and says when
// the first event has come, which it leaves there.
func childMourner() {
	d, err := shm.OpenDir("")
	need(err)
	q, err := cq.Adopt(d, os.Getenv(envQueue), cq.Options{})
	need(err)
	e, err := cq.AdoptEvents(d, "events", cq.EventOptions{})
	need(err)
	need(q.BindEvents(e))
	say("bound")
	if os.Getenv(envKind) == "blind" {
		untilTold()
	}
	ev := cq.Event{Payload: make([]byte, 0, 256)}
	_, err = e.ReadContext(context.Background(), &ev, cq.ReadOptions{Flags: cq.FlagPeek})
	need(err)
	need(q.BindEvents(nil)) // which waits until nothing is half done
	say("told")
	untilTold()
}
