package cq_test

import (
	"testing"

	"github.com/shmring/shmring/cq"
)

// TestEventPromises: what was accepted can be reported, however much is written meanwhile.
func TestEventPromises(t *testing.T) {
	_, e := createEvents(t, cq.EventOptions{Size: 8, Write: true})
	wantErr(t, "more than there is", cq.PromiseEvents(e, 9), cq.ErrFull)
	must(t, cq.PromiseEvents(e, 4))
	writeEvents(t, e, 0, 4)
	_, err := e.Write(&cq.Event{})
	wantErr(t, "into promised room", err, cq.ErrFull)
	must(t, cq.KeepEvent(e, &cq.Event{Context: 4}))
	must(t, cq.KeepEventError(e, &cq.EventError{Context: 5}))
	cq.BreakPromise(e, 1)
	writeEvents(t, e, 6, 7)
	must(t, cq.KeepEvent(e, &cq.Event{Context: 7}))
	wantErr(t, "nothing promised", cq.KeepEvent(e, &cq.Event{}), cq.ErrNoCredit)
	if got := drainEventsAnd(t, e); len(got) != 8 || got[5] != 5 || got[7] != 7 {
		t.Error(got)
	}
}
