package cq

import (
	"testing"
	"time"
)

// slowSink lets another call come between its two halves.
type slowSink struct {
	EventSink
	binds   int
	between func()
}

func (s *slowSink) bind() error {
	if s.binds++; s.binds == 2 {
		s.between()
	}
	return s.EventSink.bind()
}

// TestBindEventsWhole: of two event queues that are bound at once one gets everything.
func TestBindEventsWhole(t *testing.T) {
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	q, err := CreateAnonymous("q", Options{Size: 4})
	must(err)
	var es [2]*EventQueue
	for i := range es {
		es[i], err = CreateAnonymousEvents("e", EventOptions{Size: 4})
		must(err)
	}
	other := make(chan error, 1)
	slow := &slowSink{EventSink: es[0], between: func() {
		done := make(chan struct{})
		go func() {
			defer close(done)
			other <- q.BindEvents(es[1])
		}()
		select {
		case <-done:
		case <-time.After(50 * time.Millisecond): // it waits its turn
		}
	}}
	must(q.BindEvents(slow))
	must(<-other)
	q.feeders.mu.Lock()
	overruns := q.feeders.events
	q.feeders.mu.Unlock()
	q.deaths.mu.Lock()
	deaths := q.deaths.report.sink
	q.deaths.mu.Unlock()
	if overruns != deaths {
		t.Errorf("overruns go to %v, deaths to %v", overruns, deaths)
	}
	must(q.Close())
	must(es[0].Close())
	must(es[1].Close())
}
