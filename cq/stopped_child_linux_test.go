package cq_test

import (
	"context"
	"fmt"
	"os"
	"runtime"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
)

func init() {
	roles["runner"] = childRunner
	roles["steady reader"] = childSteadyReader
	roles["late joiner"] = childLateJoiner
}

const envKind = "SHMRING_TEST_KIND"

// childRunner posts at full speed until it is told to stop.
func childRunner() {
	var w *cq.Writer
	var err error
	ctx := context.Background()
	switch os.Getenv(envKind) {
	case "other user":
		w, err = cq.AttachConn(ctx, dialParent(),
			cq.WriterOptions{Trust: cq.CrossUser, Allow: &shm.AllowList{UIDs: []int{0}}})
	case "without a name":
		conn, e := socket(3)
		need(e)
		w, err = cq.AttachConn(ctx, conn, cq.WriterOptions{})
	default:
		d, e := shm.OpenDir("")
		need(e)
		w, err = cq.Attach(ctx, d, os.Getenv(envQueue), cq.WriterOptions{})
	}
	need(err)
	stop := toldToStop()
	say("lane %d", w.Lane())
	for !stop.Load() {
		at := w.Next()
		if err := w.Post(&cq.Entry{Context: at, Data: ^at}); err == cq.ErrFull {
			runtime.Gosched()
		} else {
			need(err)
		}
	}
	say("posted %d", w.Next())
	need(w.Close())
}

// childSteadyReader reads until it is told to stop, and says how much that was.
func childSteadyReader() {
	var q *cq.Queue
	var err error
	if name := os.Getenv(envQueue); name != "" {
		d, e := shm.OpenDir("")
		need(e)
		q, err = cq.Adopt(d, name, cq.Options{})
		need(err)
	} else {
		q, err = cq.CreateAnonymous("q", cq.Options{Size: 8, Trust: cq.CrossUser,
			Allow: &shm.AllowList{UIDs: []int{0}}})
		need(err)
		need(q.Accept(context.Background(), dialParent()))
	}
	say("reading")
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		untilTold()
		cancel()
	}()
	dst, next := make([]cq.Msg, 4), uint64(0)
	for {
		n, err := cq.ReadContext(ctx, q, dst, cq.ReadOptions{})
		if n == 0 && ctx.Err() != nil {
			break
		}
		need(err)
		for _, m := range dst[:n] {
			if m.Context != next {
				need(fmt.Errorf("entry %d, want %d", m.Context, next))
			}
			next++
		}
	}
	say("read %d", next)
	need(q.Close())
}

// childLateJoiner attaches when it is told to, and says how that went.
func childLateJoiner() {
	conn, err := socket(3)
	need(err)
	say("connected")
	var line string
	_, _ = fmt.Scanln(&line)
	_, err = cq.AttachConn(context.Background(), conn, cq.WriterOptions{})
	say("attached: %v", err == nil)
}
