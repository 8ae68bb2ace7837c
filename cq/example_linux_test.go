package cq_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
)

// Hello, completion: a queue and its writer in one process.
func Example() {
	dir, err := shm.OpenDir("")
	if err != nil {
		log.Fatal(err)
	}
	defer dir.Close()
	q, err := cq.Create(cq.Named(dir, "hello"), cq.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer q.Close()
	w, err := cq.Attach(context.Background(), cq.Named(dir, "hello"), cq.WriterOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer w.Close()

	if err := w.Post(&cq.Entry{Context: 42, Flags: cq.FlagRecv | cq.FlagMsg, Len: 5}); err != nil {
		log.Fatal(err)
	}
	var done [8]cq.Msg
	n, err := cq.Read(q, done[:])
	fmt.Println(n, err, done[0].Context, done[0].Flags, done[0].Len)
	// Output: 1 <nil> 42 MSG|RECV 5
}

// One goroutine serves many queues. The set says which of them have something.
func ExampleWaitSet() {
	dir, err := shm.OpenDir("")
	if err != nil {
		log.Fatal(err)
	}
	defer dir.Close()
	set, err := cq.NewWaitSet(dir, cq.WaitSetOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer set.Close()
	for _, name := range []string{"bids", "asks"} {
		q, err := cq.Create(cq.Named(dir, name), cq.Options{UserContext: name})
		if err != nil {
			log.Fatal(err)
		}
		defer q.Close()
		if err := set.Add(q); err != nil {
			log.Fatal(err)
		}
		defer set.Remove(q)
	}
	producer("asks", 2) // in another process

	ready := make([]cq.Waitable, 8)
	buf := make([]cq.Msg, 64)
	for seen := 0; seen < 2; {
		n, err := set.Wait(context.Background(), ready, cq.WaitOptions{})
		if err != nil {
			log.Fatal(err)
		}
		for _, m := range ready[:n] {
			// A queue that is not read empty is ready again at the next Wait.
			k, err := cq.Read(m.(*cq.Queue), buf)
			if err != nil && !errors.Is(err, cq.ErrWouldBlock) {
				log.Fatal(err)
			}
			fmt.Println(m.UserContext(), k)
			seen += k
		}
	}
	// Output: asks 2
}

// A channel's descriptor in an epoll loop of one's own, beside sockets and timers.
func ExampleChannel() {
	dir, err := shm.OpenDir("")
	if err != nil {
		log.Fatal(err)
	}
	defer dir.Close()
	channel, err := cq.NewChannel(dir)
	if err != nil {
		log.Fatal(err)
	}
	defer channel.Close()
	q, err := cq.Create(cq.Named(dir, "fills"), cq.Options{Shared: true})
	if err != nil {
		log.Fatal(err)
	}
	defer q.Close()
	if err := channel.Attach(q); err != nil {
		log.Fatal(err)
	}
	defer channel.Detach(context.Background(), q)
	if err := channel.RequestNotify(q, cq.NotifyAny); err != nil {
		log.Fatal(err)
	}
	fd, err := channel.FD()
	if err != nil {
		log.Fatal(err)
	}
	loop, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		log.Fatal(err)
	}
	defer unix.Close(loop)
	in := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}
	if err := unix.EpollCtl(loop, unix.EPOLL_CTL_ADD, fd, &in); err != nil {
		log.Fatal(err)
	}
	producer("fills", 3) // in another process

	buf := make([]cq.Msg, 64)
	events := make([]unix.EpollEvent, 8)
	seen := 0
	for seen < 3 {
		// Of a loop's other descriptors events says which are ready; here there is but one.
		if _, err := unix.EpollWait(loop, events, -1); err == unix.EINTR {
			continue
		} else if err != nil {
			log.Fatal(err)
		}
		for {
			ev, err := channel.TryGetEvent()
			if err != nil {
				break // cq.ErrWouldBlock: the descriptor tells of the next
			}
			// Acknowledge, arm, and read until the queue is empty, or 256 at a time.
			err = cq.Drain(channel, ev, cq.NotifyAny, buf, 256, func(done []cq.Msg) error {
				seen += len(done)
				return nil
			})
			if err != nil {
				log.Fatal(err)
			}
		}
	}
	fmt.Println(seen, "completions")
	// Output: 3 completions
}

// Going through a queue in place, without copies.
func ExampleQueue_Entries() {
	q := open("walk")
	defer q.Close()
	w, err := q.Writer()
	if err != nil {
		log.Fatal(err)
	}
	defer w.Close()
	for id := range uint64(5) {
		if err := w.Post(&cq.Entry{Context: id}); err != nil {
			log.Fatal(err)
		}
	}
	for e, err := range q.Entries(0) {
		if err != nil {
			log.Fatal(err)
		}
		if e.Context == 3 {
			break
		}
		fmt.Println(e.Context)
	}
	// Output:
	// 0
	// 1
	// 2
}

func init() { roles["example caller"] = call }

// call is the whole other program. It knows where the socket is, which another process of its user
// can be told in any way.
func call() {
	where := &net.UnixAddr{Name: os.Getenv(envName), Net: "unix"}
	conn, err := net.DialUnix("unix", nil, where)
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	w, err := cq.Attach(context.Background(), cq.Over(conn), cq.WriterOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer w.Close()
	if err := w.Post(&cq.Entry{Context: 7}); err != nil {
		log.Fatal(err)
	}
}

// A queue without a name: its reader hands it to whoever connects to a socket.
func ExampleQueue_Serve() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	where := &net.UnixAddr{Name: filepath.Join(dir, "socket"), Net: "unix"}

	q, err := cq.Create(cq.Unnamed("orders"), cq.Options{})
	if err != nil {
		log.Fatal(err)
	}
	l, err := net.ListenUnix("unix", where)
	if err != nil {
		log.Fatal(err)
	}
	served := make(chan error)
	go func() { served <- q.Serve(l, func(err error) { log.Print(err) }) }()

	other := another("example caller", envName+"="+where.Name) // an *exec.Cmd that runs call
	if err := other.Start(); err != nil {
		log.Fatal(err)
	}

	buf := make([]cq.Context, 16)
	n, err := cq.ReadContext(context.Background(), q, buf, cq.ReadOptions{})
	fmt.Println(n, buf[0].Context, err)
	if err := other.Wait(); err != nil {
		log.Fatal(err)
	}
	if err := q.Close(); err != nil {
		log.Fatal(err)
	}
	fmt.Println(<-served)
	_ = l.Close()
	// Output:
	// 1 7 <nil>
	// cq: queue is closed: open or attach again to go on
}
