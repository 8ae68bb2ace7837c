package cq_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/shmring/shmring/cq"
)

func init() { roles["echo"] = childEcho }

// childEcho answers each entry of a queue of its own with one in its parent's, as the same user
// over a socket that it got, or as another one.
func childEcho() {
	p := &Peer{user: number("OTHERS", 0) == 1}
	var err error
	if p.user {
		p.conn = dialParent()
	} else {
		p.conn, err = socket(3)
		need(err)
	}
	ctx, o := context.Background(), cq.Options{Size: 8, Spin: -1, Trust: p.options().Trust,
		Allow: p.options().Allow}
	w, err := cq.AttachConn(ctx, p.conn, p.options())
	need(err)
	q, err := cq.CreateAnonymous("echo", o)
	need(err)
	need(q.Accept(ctx, p.conn))
	dst := make([]cq.Context, 1)
	for {
		if _, err := cq.ReadContext(ctx, q, dst, cq.ReadOptions{}); err != nil || dst[0].Context == 0 {
			break
		}
		need(w.Post(&cq.Entry{Context: dst[0].Context}))
	}
	need(w.Close())
	need(q.Close())
}

// BenchmarkOthersRoundTrip is an entry to another process and one back, both sides asleep in
// between: of one user, and of two.
func BenchmarkOthersRoundTrip(b *testing.B) {
	for _, at := range []site{{memfd: true}, {memfd: true, others: true}} {
		b.Run(fmt.Sprint(at), func(b *testing.B) {
			q, err := cq.CreateAnonymous("q", at.queue(cq.Options{Size: 8, Spin: -1}))
			must(b, err)
			defer q.Close()
			p := &peer{user: at.others}
			var c *child
			if at.others {
				o := startOther(b, "echo", "OTHERS=1")
				c, p.conn = o.child, o.conn
			} else {
				c, p.conn = startWithSocket(b, "echo")
			}
			defer c.kill()
			must(b, q.Accept(soon(b), p.conn))
			o := at.writer()
			o.Allow = bothUsers()
			w, err := cq.AttachConn(soon(b), p.conn, o)
			must(b, err)
			defer w.Close()
			dst := make([]cq.Context, 1)
			for b.Loop() {
				must(b, w.Post(&cq.Entry{Context: 1}))
				if _, err := cq.ReadContext(b.Context(), q, dst, cq.ReadOptions{}); err != nil {
					b.Fatal(err)
				}
			}
			b.StopTimer()
			must(b, w.Post(&cq.Entry{}))
			_, _ = c.out.ReadByte() // until it has ended
		})
	}
}
