package cq_test

import (
	"errors"
	"os"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/collect"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

func init() { roles["lane holder"] = childLaneHolder }

// childLaneHolder begins to collect a queue and gets no further.
func childLaneHolder() {
	d, err := shm.OpenDir("")
	need(err)
	_, err = collect.HoldLanes(d, os.Getenv(envQueue))
	need(err)
	say("held")
	select {}
}

// TestDeathOutlivesCollectors: collectors that have the lanes of a queue, and give up, or die over
// it, hide nobody who died there, and nobody takes them for writers.
func TestDeathOutlivesCollectors(t *testing.T) {
	shmtest.Conforms(t)
	shmtest.Long(t)
	for name, meet := range map[string]func(t *testing.T, d *shm.Dir, name string){
		"gives up": func(t *testing.T, d *shm.Dir, name string) {
			release, err := collect.HoldLanes(d, name)
			must(t, err)
			release()
		},
		"dies": func(t *testing.T, _ *shm.Dir, name string) {
			c := startChild(t, "lane holder", envQueue+"="+name)
			if got := c.line(t); got != "held" {
				t.Fatal(got)
			}
			c.kill()
		},
	} {
		t.Run(name, func(t *testing.T) {
			d, name := openDir(t), queueName(t)
			q, err := cq.Create(d, name, cq.Options{Size: 8, Lifetime: cq.Persistent})
			must(t, err)
			c := namedWriter(t, q, 1)
			must(t, q.Detach())
			c.kill()
			for range 2 {
				meet(t, d, name)
			}
			q, err = cq.Adopt(d, name, cq.Options{})
			must(t, err)
			e := eventsFor(t, q, cq.EventOptions{})
			wantDeath(t, e, q.FID(), cq.PeerWriter, c.Process.Pid)
			noNews(t, e)
			if got := drain(t, q); len(got) != 1 {
				t.Errorf("read %v", got)
			}
			must(t, errors.Join(q.BindEvents(nil), q.Close()))
		})
	}
}
