package cq_test

import (
	"context"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
)

// TestDeathWakesSets: a writer that died between publishing and ringing leaves nobody asleep, on a
// set, its descriptor, or a channel.
func TestDeathWakesSets(t *testing.T) {
	t.Parallel()
	for name, elsewhere := range map[string]bool{"here": false, "in another PID namespace": true} {
		t.Run(name, func(t *testing.T) {
			d := openDir(t)
			s := waitSet(t, d, cq.WaitSetOptions{})
			byFD := waitSet(t, d, cq.WaitSetOptions{Wait: cq.WaitFD})
			c := channel(t, d)
			q, err := cq.Create(d, queueName(t), cq.Options{Size: 8, Shared: true})
			must(t, err)
			t.Cleanup(func() { closeQueue(t, q) })
			must(t, c.Attach(q))
			t.Cleanup(func() { must(t, c.Detach(context.Background(), q)) })
			for _, set := range []*cq.WaitSet{s, byFD} {
				must(t, set.Add(q))
				t.Cleanup(func() { must(t, set.Remove(q)) })
			}
			writer := mortal(t, q.Name(), elsewhere)
			for got := 0; got < 1; {
				got += len(drain(t, q))
			}
			must(t, c.RequestNotify(q, cq.NotifyAny))
			for byFD.TryWait() != nil {
				drain(t, q)
			}
			woken := make(chan error, 2)
			go func() {
				_, err := setWait(s, nil, time.Minute)
				woken <- err
			}()
			go func() {
				ev, err := getEvent(c, time.Minute)
				if err == nil {
					err = c.Ack(ev.Queue, 1)
				}
				woken <- err
			}()
			time.Sleep(20 * time.Millisecond) // long enough to be asleep, mostly
			publishFor(t, d, q.Name())
			writer.kill()
			for range 2 {
				if err := <-woken; err != nil {
					t.Error(err)
				}
			}
			if !readable(t, waitFD(byFD), 60_000) {
				t.Error("never readable")
			}
			if got := drain(t, q); len(got) != 1 || got[0] != 77 {
				t.Error(got)
			}
		})
	}
}
