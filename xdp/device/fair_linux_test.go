package device_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/xdp/device"
)

// TestFairness: applications that send as fast as they can, one of them without ever reading a
// completion, keep nobody else from sending and receiving.
func TestFairness(t *testing.T) {
	shmtest.Conforms(t)
	r := newRig(t, device.Config{Frames: 512})
	l := bystander(r)
	sink := addrOf(r.peer(6001))
	greedy := r.dial(device.Request{Name: "greedy", Ports: []uint16{5001}, Frames: 32,
		Sends: 64})
	deaf := r.dial(device.Request{Name: "deaf", Ports: []uint16{5002}, Frames: 32, Sends: 64,
		QueueOptions: cq.Options{Size: 64}})
	stop := make(chan struct{})
	var wg sync.WaitGroup
	flood := func(e *device.Endpoint, reads bool) {
		var es [32]cq.Entry
		for {
			select {
			case <-stop:
				return
			default:
			}
			if err := e.SendTo(make([]byte, 1000), sink, 1); err != nil &&
				!errors.Is(err, device.ErrNoSlot) {
				t.Error(err)
				return
			}
			if reads {
				_, _ = cq.Read(e.Queue(), es[:])
			}
		}
	}
	wg.Go(func() { flood(greedy, true) })
	wg.Go(func() { flood(deaf, false) })
	for range 5 {
		l.goesOn()
	}
	await(t, "what the others send meanwhile", func() bool {
		return greedy.Stats().Sent >= 1000 && deaf.Stats().Sent >= 64
	})
	l.goesOn()
	close(stop)
	wg.Wait()
	// What the deaf one is told stands in its queue, and no more was taken than there is room for.
	if s := deaf.Stats(); s.Sent != 64 {
		t.Errorf("deaf: %+v", s)
	}
	must(t, r.reported())
}

// TestReturnedFrames: an application that has given its frames back gets as many packets, however
// short its turns are.
func TestReturnedFrames(t *testing.T) {
	t.Parallel()
	const frames = 16
	for name, inPlace := range map[string]bool{"copied": false, "in place": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, device.Config{TxBatch: 1, RxBatch: 2 * frames})
			e := r.dial(device.Request{Ports: []uint16{5000}, Frames: frames, InPlace: inPlace})
			peer := r.peer(6000)
			var es [frames]cq.Entry
			for round := range 4 {
				resume := r.server.Hold()
				if round > 0 {
					must(t, e.ReleaseBatch(es[:]))
				}
				for i := range frames {
					write(t, peer, r, 5000, fmt.Sprint(round, " ", i))
				}
				resume()
				await(t, "the packets", func() bool {
					s := e.Stats()
					return s.Received+s.NoFrame == uint64((round+1)*frames)
				})
				if s := e.Stats(); s.NoFrame != 0 {
					t.Fatalf("round %d: dropped: %+v", round, s)
				}
				for i := range es {
					es[i] = next(t, e)
				}
			}
			must(t, e.ReleaseBatch(es[:]))
			if s := e.Stats(); s.Released != 4*frames || s.Publishes != 4 {
				t.Errorf("%d frames were given back in %d batches", s.Released, s.Publishes)
			}
			r.whole()
		})
	}
}
