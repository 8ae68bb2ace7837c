package cq_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/netip"
	"syscall"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
)

// What ends a blocking read is in the error it returns.
func ExampleReadContext() {
	q := open("blocking")
	defer q.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	_, err := cq.ReadContext(ctx, q, make([]cq.Msg, 8), cq.ReadOptions{})
	fmt.Println(errors.Is(err, context.DeadlineExceeded))
	ctx, buf := context.Background(), make([]cq.Msg, 8)
	_, err = cq.ReadContext(ctx, q, buf, cq.ReadOptions{Timeout: time.Millisecond})
	fmt.Println(errors.Is(err, cq.ErrTimedOut))
	_ = q.Signal()
	_, err = cq.ReadContext(ctx, q, buf, cq.ReadOptions{})
	fmt.Println(errors.Is(err, cq.ErrSignaled))
	// Output:
	// true
	// true
	// true
}

// Failed operations come in order with the others and are taken one by one.
func ExampleQueue_ReadErr() {
	q := open("failures")
	defer q.Close()
	w, err := q.Writer()
	if err != nil {
		log.Fatal(err)
	}
	_ = w.Post(&cq.Entry{Context: 1})
	_ = w.PostError(&cq.ErrorEntry{Context: 2, Err: cq.ETrunc, OverrunBytes: 100})
	_ = w.Post(&cq.Entry{Context: 3})
	_ = w.Close()

	buf := make([]cq.Context, 8)
	for {
		n, err := cq.Read(q, buf)
		for _, c := range buf[:n] {
			fmt.Println("done", c.Context)
		}
		if errors.Is(err, cq.ErrAvail) {
			var failed cq.ErrorEntry
			if err := q.ReadErr(&failed); err != nil {
				log.Fatal(err)
			}
			fmt.Println("failed", failed.Context, failed.Err, failed.OverrunBytes)
		} else if err != nil {
			break // cq.ErrWouldBlock: nothing more
		}
	}
	// Output:
	// done 1
	// failed 2 truncation 100
	// done 3
}

// A threshold wakes the reader once for many entries; at the deadline it takes what is there.
func ExampleReadOptions() {
	q := open("batches")
	defer q.Close()
	producer("batches", 10)
	ctx, buf := context.Background(), make([]cq.Msg, 64)
	n, err := cq.ReadContext(ctx, q, buf, cq.ReadOptions{Threshold: 10})
	fmt.Println(n, err)
	producer("batches", 2)
	n, err = cq.ReadContext(ctx, q, buf, cq.ReadOptions{Threshold: 10, Timeout: time.Millisecond})
	fmt.Println(n, err)
	// Output:
	// 10 <nil>
	// 2 <nil>
}

// What was peeked stays in the queue until it was acted on.
func ExampleQueue_Peek() {
	q := open("inplace")
	defer q.Close()
	producer("inplace", 3)
	es, err := q.Peek(64)
	if err != nil {
		log.Fatal(err)
	}
	for i := range es {
		fmt.Println(es[i].Context, es[i].Meta.Seq(), q.Redelivered())
	}
	if err := q.Release(len(es)); err != nil {
		log.Fatal(err)
	}
	// Output:
	// 0 0 false
	// 1 1 false
	// 2 2 false
}

func open(name string) *cq.Queue {
	dir, err := shm.OpenDir("")
	if err != nil {
		log.Fatal(err)
	}
	defer dir.Close()
	q, err := cq.Create(cq.Named(dir, name), cq.Options{})
	if err != nil {
		log.Fatal(err)
	}
	return q
}

// The owner of an address vector inserts; any other process opens it by name and looks up.
func ExampleCreateAddresses() {
	dir, err := shm.OpenDir("")
	if err != nil {
		log.Fatal(err)
	}
	defer dir.Close()
	peers, err := cq.CreateAddresses(cq.Named(dir, "peers"), cq.AddressOptions{Count: 100})
	if err != nil {
		log.Fatal(err)
	}
	defer peers.Close()
	at, err := peers.Insert([][]byte{
		cq.AppendSockaddr(nil, netip.MustParseAddrPort("10.0.0.1:4711")),
		cq.AppendSockaddr(nil, netip.MustParseAddrPort("[2001:db8::1]:4711")),
		{1, 2, 3},
	}, cq.InsertOptions{})
	var failed *cq.InsertError
	if errors.As(err, &failed) {
		fmt.Println(failed.Inserted, "inserted, the third is refused:", failed.Errs[2] != nil)
	}

	reader, err := cq.AttachAddresses(cq.Named(dir, "peers")) // as another process does
	if err != nil {
		log.Fatal(err)
	}
	defer reader.Close()
	buf := make([]byte, 32)
	n, err := reader.Lookup(at[1], buf)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(reader.StrAddr(buf[:n]))
	fmt.Println(reader.Resolve(buf[:n]))
	// Output:
	// 2 inserted, the third is refused: true
	// [2001:db8::1]:4711
	// 1 true
}

// Workers count what they have done, and one who waits for all of it sleeps until then.
func ExampleCounter() {
	dir, err := shm.OpenDir("")
	if err != nil {
		log.Fatal(err)
	}
	defer dir.Close()
	done, err := cq.CreateCounter(cq.Named(dir, "done"), cq.CounterOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer done.Close()

	go func() { // as another process does
		mine, err := cq.AttachCounter(cq.Named(dir, "done"), cq.CounterOptions{})
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

// An endpoint of one's own accepts what has room to complete, counts what ends, and keeps open what
// it reports to.
func ExampleHold() {
	q := open("endpoint")
	defer q.Close()
	w, err := q.Writer()
	if err != nil {
		log.Fatal(err)
	}
	defer w.Close()
	sent, err := cq.CreateCounter(cq.Unnamed("sent"), cq.CounterOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer sent.Close()
	release, err := cq.Hold(w, sent)
	if err != nil {
		log.Fatal(err)
	}
	defer release()
	fmt.Println("busy:", errors.Is(sent.Close(), cq.ErrBusy))

	send := func(context uint64, failed cq.Errno) {
		err := w.Credits().Add(1) // before the operation is accepted: cq.ErrFull says not now
		switch {
		case err != nil:
		case failed == 0:
			err = errors.Join(w.Credits().Post(&cq.Entry{Context: context, Flags: cq.FlagSend}),
				sent.Add(1))
		default:
			err = errors.Join(w.Credits().PostError(&cq.ErrorEntry{Context: context,
				Flags: cq.FlagSend, Err: failed}), sent.AddErr(1))
		}
		if err != nil {
			log.Fatal(err)
		}
	}
	send(1, 0)
	send(2, cq.ETrunc)

	buf := make([]cq.Context, 8)
	n, err := cq.Read(q, buf)
	fmt.Println(buf[:n], err)
	_, err = cq.Read(q, buf)
	fmt.Println(errors.Is(err, cq.ErrAvail))
	var failed cq.ErrorEntry
	fmt.Println(q.ReadErr(&failed), failed.Context, failed.Err)
	// Output:
	// busy: true
	// [{1}] <nil>
	// true
	// <nil> 2 truncation
}

// Data from somebody who is not in the address vector comes as an error entry, which brings what is
// needed to make its source known.
func ExampleAddressVector_Resolve() {
	q := open("sources")
	defer q.Close()
	peers, err := cq.CreateAddresses(cq.Unnamed("peers"), cq.AddressOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer peers.Close()
	w, err := q.Writer() // or a device process, which opened the vector by name
	if err != nil {
		log.Fatal(err)
	}
	defer w.Close()
	from := cq.AppendSockaddr(nil, netip.MustParseAddrPort("10.0.0.9:53"))
	for context := range uint64(2) {
		if source, known := peers.Resolve(from); known {
			err = w.Post(&cq.Entry{Context: context, Flags: cq.FlagRecv, Len: 100,
				Src: cq.From(source)})
		} else {
			err = w.PostError(&cq.ErrorEntry{Context: context, Flags: cq.FlagRecv, Len: 100,
				Err: cq.Errno(syscall.EADDRNOTAVAIL), ErrData: from})
		}
		if err != nil {
			log.Fatal(err)
		}
		dst, src := make([]cq.Msg, 1), make([]cq.Addr, 1)
		switch _, err = cq.ReadFrom(q, dst, src); {
		case errors.Is(err, cq.ErrAvail):
			e := cq.ErrorEntry{ErrData: make([]byte, cq.ErrDataMaxBytes)}
			if err := q.ReadErr(&e); err != nil {
				log.Fatal(err)
			}
			at, err := peers.Insert([][]byte{e.ErrData}, cq.InsertOptions{})
			fmt.Println(e.Len, "bytes from", peers.StrAddr(e.ErrData), "inserted as", at, err)
		case err == nil:
			fmt.Println(dst[0].Len, "bytes from index", src[0])
		}
	}
	// Output:
	// 100 bytes from 10.0.0.9:53 inserted as [0] <nil>
	// 100 bytes from index 0
}

// Operations use memory of an object by a key, as far as its access allows.
func ExampleRegisterMemory() {
	const buffers shm.SectionKind = 0x1000
	obj, err := shm.CreateMemfd(shm.Spec{Kind: shm.KindRegion,
		Sections: []shm.Section{{Kind: buffers, Length: 1 << 16}}}, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer obj.Close()
	_, s, err := obj.Section(buffers, 0)
	if err != nil {
		log.Fatal(err)
	}
	region, err := cq.RegisterMemory(obj, cq.MemoryOptions{Offset: s.Offset + 4096, Length: 4096,
		Access: cq.FlagRecv | cq.FlagRemoteWrite})
	if err != nil {
		log.Fatal(err)
	}
	defer region.Close()
	incoming, err := region.View(0, 5, cq.FlagRemoteWrite)
	if err != nil {
		log.Fatal(err)
	}
	copy(incoming, "hello")

	mine, err := region.View(0, 5, cq.FlagRecv)
	fmt.Println(string(mine), err, region.Key() != cq.KeyNotAvail)
	// Output: hello <nil> true
}

// An event queue reports connections, registrations and peers; failures come in order and are taken
// with ReadErr.
func ExampleEventQueue() {
	dir, err := shm.OpenDir("")
	if err != nil {
		log.Fatal(err)
	}
	defer dir.Close()
	eq, err := cq.CreateEvents(cq.Named(dir, "control"), cq.EventOptions{Write: true})
	if err != nil {
		log.Fatal(err)
	}
	defer eq.Close()

	// Another process, as a rule, writes through a lane of its own.
	peer, err := cq.AttachEvents(context.Background(), cq.Named(dir, "control"), cq.WriterOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer peer.Close()
	endpoint := cq.FID{Kind: cq.FIDPassiveEndpoint, ID: 7, Generation: 1}
	request := cq.CMEntry{Data: []byte("let me in")}
	payload, err := request.AppendTo(nil)
	if err != nil {
		log.Fatal(err)
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
				log.Fatal(err)
			}
			fmt.Println("operation", failed.Context, "failed:", failed.Err)
		case errors.Is(err, cq.ErrTimedOut):
			return
		case err != nil:
			log.Fatal(err)
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
		log.Fatal(err)
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
		log.Fatal(err)
	}
	_, _ = eq.Write(&cq.Event{Event: cq.EventMRComplete, Context: 1})
	_, _ = eq.Write(&cq.Event{Event: cq.EventUser + 5, Context: 2})
	<-last
	if err := eq.Close(); err != nil { // waits for the call that runs
		log.Fatal(err)
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
		log.Fatal(err)
	}
	var q *cq.Queue
	var events *cq.EventQueue
	defer func() { fmt.Println("all closed:", cq.CloseAll(dir, q, events)) }()
	if q, err = cq.Create(cq.Named(dir, "reports"), cq.Options{}); err != nil {
		log.Fatal(err)
	}
	if events, err = cq.CreateEvents(cq.Named(dir, "reported"), cq.EventOptions{}); err != nil {
		log.Fatal(err)
	}
	if err := q.BindEvents(events); err != nil {
		log.Fatal(err)
	}
	fmt.Println(errors.Is(events.Close(), cq.ErrBusy)) // as a deferred call would do it
	// Output:
	// true
	// all closed: <nil>
}
