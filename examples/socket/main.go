// Command socket has a queue without a name: its reader hands it to whoever connects to a socket.
//
//	socket serve PATH    listens there, and prints what callers post, until it is interrupted
//	socket call PATH     connects, and posts one completion
package main

import (
	"context"
	"fmt"
	"log"
	"net"
	"os"
	"os/signal"

	"github.com/shmring/shmring/cq"
)

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: socket serve|call PATH")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	where := &net.UnixAddr{Name: os.Args[2], Net: "unix"}
	if os.Args[1] == "serve" {
		serve(ctx, where)
	} else {
		call(ctx, where)
	}
}

func serve(ctx context.Context, where *net.UnixAddr) {
	q, err := cq.Create(cq.Unnamed("orders"), cq.Options{})
	check(err)
	defer q.Close()
	l, err := net.ListenUnix("unix", where)
	check(err)
	defer l.Close()
	go q.Serve(l, func(err error) { log.Print(err) }) // it ends when the queue is closed
	fmt.Println("serving")
	buf := make([]cq.Msg, 16)
	for {
		n, err := cq.ReadContext(ctx, q, buf, cq.ReadOptions{})
		if ctx.Err() != nil {
			return
		}
		check(err)
		for _, m := range buf[:n] {
			fmt.Println("done:", m.Context)
		}
	}
}

func call(ctx context.Context, where *net.UnixAddr) {
	conn, err := net.DialUnix("unix", nil, where)
	check(err)
	defer conn.Close()
	w, err := cq.Attach(ctx, cq.Over(conn), cq.WriterOptions{})
	check(err)
	defer w.Close()
	check(w.PostContext(ctx, &cq.Entry{Context: 7}))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
