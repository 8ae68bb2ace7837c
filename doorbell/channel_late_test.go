package doorbell

import (
	"sync"
	"testing"
	"time"

	"github.com/shmring/shmring/ring"
)

// TestChannelLateJudge: a getter that picked a queue which is taken off meanwhile leaves its words
// alone, for their memory may be gone.
func TestChannelLateJudge(t *testing.T) {
	for name, call := range map[string]func(c *Channel){
		"get":     func(c *Channel) { _, _, _ = c.TryGet() },
		"pending": func(c *Channel) { c.Pending(0) },
	} {
		t.Run(name, func(t *testing.T) {
			late := 0
			for range 50 {
				d := newDomain(t, 1, 1, readerOptions{shared: true})
				c := d.NewChannel()
				c.Add(0, d.r[0].Bell)
				if err := c.Arm(0, NotifyAny); err != nil {
					t.Fatal(err)
				}
				d.r[0].Lock()
				var all sync.WaitGroup
				all.Go(func() { c.Delete(0) }) // waits for the lock
				time.Sleep(2 * time.Millisecond)
				d.q[0].writer(0, ring.SeqCst, d.ringer(0)).publish(1)
				mark(d.q[0].hints.ready, 0)
				mark(d.hints.ready, 0)
				mark(d.hints.summary, 0)
				all.Go(func() { call(c) }) // picks the queue, and waits behind
				time.Sleep(2 * time.Millisecond)
				d.r[0].Unlock()
				all.Wait()
				if d.q[0].hints.ready[0].Load() == 0 {
					late++
				}
			}
			if late > 25 { // the getter may have been first now and then
				t.Errorf("looked at a queue that was off the channel, %d of 50 times", late)
			}
		})
	}
}
