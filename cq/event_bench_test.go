package cq_test

import (
	"fmt"
	"testing"

	"github.com/shmring/shmring/cq"
)

// One process writes into its own event queue and reads it back.
func BenchmarkEventWriteRead(b *testing.B) {
	for _, shared := range []bool{false, true} {
		for _, bytes := range []int{0, 64} {
			b.Run(fmt.Sprintf("shared=%v/payload=%d", shared, bytes), func(b *testing.B) {
				_, e := createEvents(b, cq.EventOptions{Write: true, Shared: shared})
				in := cq.Event{Event: cq.EventUser, Payload: make([]byte, bytes)}
				out := cq.Event{Payload: make([]byte, 0, 64)}
				b.ReportAllocs()
				for b.Loop() {
					if _, err := e.Write(&in); err != nil {
						b.Fatal(err)
					}
					if _, err := e.Read(&out, 0); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

func BenchmarkEventReadEmpty(b *testing.B) {
	_, e := createEvents(b, cq.EventOptions{Write: true})
	writeEvents(b, e, 0, 1)
	_ = drainEvents(b, e)
	var ev cq.Event
	for b.Loop() {
		_, _ = e.Read(&ev, 0)
	}
}
