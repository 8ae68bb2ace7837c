package doorbell

import (
	"slices"
	"testing"

	"github.com/shmring/shmring/internal/barrier"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/ring"
)

// buffered is a lane whose writer has published an entry that sits in its processor's store buffer:
// the reader sees it when it has run a barrier.
type buffered struct {
	b    *Bell
	paid uint64 // barriers before
}

func (l *buffered) Level() (head, tail uint64) {
	if l.b != nil && l.b.Barriers() > l.paid {
		return 0, 1
	}
	return 0, 0
}

func (l *buffered) Solicited() uint64 { return 0 }

// passedOn is a queue whose one lane, hot, was taken over by a writer that leaves it to the reader
// to pay, after one that did not. The successor has attached, and then published without a fence:
// it saw that its lane is hot.
func passedOn(t *testing.T) (*Bell, *queue) {
	shmtest.Require(t, "membarrier", barrier.Register())
	q := heapQueue(t, 1)
	q.row(0).Parked.Store(0)
	lane := &buffered{}
	c := LaneConfig{Row: q.row(0), Source: lane, Capacity: laneSlots}
	b := NewBell(Config{Arm: q.arm, Hints: q.hints, Lanes: 1})
	b.marked = func(bit int) {
		c.ReaderPays = true
		b.Reconfigure(bit, c)
	}
	b.Add(0, c)
	q.writer(0, ring.Release).Attach()
	lane.b = b
	return b, q
}

func TestSuccessorDoesNotPay(t *testing.T) {
	b, _ := passedOn(t)
	if more, err := b.Park(); more || err != nil || b.Barriers() != 0 {
		t.Fatalf("parked as the first writer's: %v, %v, %d barriers", more, err, b.Barriers())
	}
	b.Take()
	b.Heat()
	if more, err := b.Park(); !more || err != nil {
		t.Errorf("the reader would sleep on an entry: %v, %v, %d barriers", more, err, b.Barriers())
	}
}

// TestSuccessorDoesNotPaySet: another goroutine takes the mark, and the set has nothing else.
func TestSuccessorDoesNotPaySet(t *testing.T) {
	b, _ := passedOn(t)
	d := NewDomain(new(Arm), must(MapDomain(words8(int(DomainBytes(1))), 1)), 1)
	s := d.NewSet()
	s.Add(0, b)
	if _, err := b.Park(); err != nil {
		t.Fatal(err)
	}
	d.mu.Lock()
	s.todo.clear(0) // it has found the member empty
	d.mu.Unlock()
	b.Take()
	if ready, err := s.Poll(nil); !slices.Equal(ready, []int{0}) || err != nil {
		t.Errorf("ready are %v, %v; want the member whose lane has an entry", ready, err)
	}
}
