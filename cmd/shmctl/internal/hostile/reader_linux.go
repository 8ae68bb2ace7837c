package hostile

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
)

const attackerSocket = "attacker-%d"

// poll waits until a descriptor is readable, or that many milliseconds have passed.
func poll(o interface{ GetWait() (cq.Native, error) }, ms int) {
	wait, _ := o.GetWait()
	_, _ = unix.Poll([]unix.PollFd{{Fd: int32(wait.FD), Events: unix.POLLIN}}, ms)
}

// meetAttacker connects to an attacker, if one is there.
func (c *child) meetAttacker(i int) *net.UnixConn {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: c.path(fmt.Sprintf(attackerSocket, i)),
		Net: "unix"})
	if err != nil { // it is about to come
		time.Sleep(time.Millisecond)
		return nil
	}
	return conn
}

// postSomehow makes one call of one kind.
func postSomehow(rnd *rand.Rand, w *cq.Writer) (what string, err error) {
	e := cq.Entry{Context: rnd.Uint64(), Flags: cq.FlagSend | cq.FlagMsg}
	if rnd.IntN(4) == 0 {
		e.Meta = cq.MetaSolicited
	}
	switch rnd.IntN(8) {
	case 0:
		return "post an error", w.PostError(&cq.ErrorEntry{Err: cq.EOverrun})
	case 1:
		_, err = w.PostBatch(make([]cq.Entry, 1+rnd.IntN(300)))
		return "post a batch", err
	case 2:
		n := 1 + rnd.IntN(4)
		if err = w.Credit(n); err != nil {
			return "credit", err
		}
		for range n {
			if err == nil {
				err = w.PostCredited(&e)
			}
		}
		w.ReturnCredits(w.Credits())
		return "post with a credit", err
	case 3:
		a, b, err := w.Reserve(1 + rnd.IntN(300))
		if err == nil {
			if n := len(a) + len(b); n > w.Stats().Size {
				err = fmt.Errorf("%d slots of %d", n, w.Stats().Size)
			}
			for i := range a {
				a[i] = e
			}
			for i := range b {
				b[i] = e
			}
		}
		if err == nil {
			err = w.Commit(len(a) + len(b))
		}
		return "reserve and commit", err
	case 4:
		if n := w.Free(); n < 0 || n > w.Stats().Size {
			return "free", fmt.Errorf("%d of %d are free", n, w.Stats().Size)
		}
		return "free", nil
	}
	return "post", w.Post(&e)
}

// attackReader has queues whose memory is scribbled over while writers attach and post.
func attackReader(c *child) error {
	l, err := listen(c.path(fmt.Sprintf(attackerSocket, c.Index)))
	if err != nil {
		return err
	}
	c.ready()
	for c.ctx.Err() == nil {
		o := cq.Options{Size: 64 << c.rnd.IntN(6), MaxLanes: 8, Trust: c.trust(), Spin: -1,
			Wait:    []cq.WaitObject{cq.WaitUnspec, cq.WaitFD}[c.rnd.IntN(2)],
			Overrun: []cq.Overrun{0, cq.OverrunQueue}[c.rnd.IntN(2)]}
		if o.Trust == cq.CrossUser {
			o.Allow = everybody()
		}
		q, err := cq.CreateAnonymous("attacker", o)
		if err != nil {
			return err
		}
		c.readHostile(l, q)
		if q.Close() != nil { // it can be too broken for that
			os.Exit(0)
		}
	}
	return nil
}

// readHostile serves one queue over which it scribbles.
func (c *child) readHostile(l *net.UnixListener, q *cq.Queue) {
	rnd := c.split()
	for range 1 + c.rnd.IntN(8) {
		if rnd.IntN(2) == 0 { // somebody is to be there when it begins
			c.acceptOne(l, q)
		}
		c.raid(func(stop <-chan struct{}) {
			var busy sync.WaitGroup
			busy.Go(func() {
				dst := make([]cq.Entry, 64)
				for !stopped(stop) {
					if rnd.IntN(2) == 0 {
						_, _ = cq.ReadContext(context.Background(), q, dst, cq.ReadOptions{Timeout: time.Millisecond})
					} else {
						_, _ = cq.Read(q, dst)
						time.Sleep(50 * time.Microsecond)
					}
					var e cq.ErrorEntry
					_ = q.ReadErr(&e)
				}
			})
			for !stopped(stop) {
				c.acceptOne(l, q)
			}
			busy.Wait()
		})
	}
}

// accepter is a queue of either kind.
type accepter interface {
	Accept(context.Context, *net.UnixConn) error
}

func (c *child) acceptOne(l *net.UnixListener, q accepter) {
	_ = l.SetDeadline(time.Now().Add(2 * time.Millisecond))
	conn, err := l.AcceptUnix()
	if err != nil {
		return
	}
	ctx, cancel := limited(20 * time.Millisecond)
	if q.Accept(ctx, conn) == nil {
		c.counts[attaches].Add(1)
	}
	cancel()
	_ = conn.Close()
}

func stopped(stop <-chan struct{}) bool {
	select {
	case <-stop:
		return true
	default:
		return false
	}
}
