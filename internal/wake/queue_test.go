package wake

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/spin"
	"github.com/shmring/shmring/ring"
)

// The queue of these tests: lanes of 64-bit slots, each entry holding its own index, and the bell
// words, over memory that may be the heap or shared between processes.
//
//	0     armed word
//	256   domain's armed word
//	512   control word of a test
//	1024  hints (room for 4096 lanes), then lane after lane:
//	      0 row, 128 tail, 256 head, 384 index after the last solicited entry, 512 slots
const (
	offHints  = 1024
	offLanes  = 4096
	laneSlots = 64
	laneBytes = 512 + laneSlots*8
)

type queue struct {
	mem   []byte
	arm   *Arm
	hints *Hints
	lanes int
}

func queueBytes(lanes int) int { return offLanes + lanes*laneBytes }

// heapQueue lays a new queue over heap memory; every lane is born parked.
func heapQueue(t testing.TB, lanes int) *queue {
	t.Helper()
	q := shmtest.Got(overlay(words8(queueBytes(lanes)), lanes)).Or(t)
	for bit := range lanes {
		q.row(bit).Parked.Store(Parked)
	}
	return q
}

func overlay(mem []byte, lanes int) (q *queue, err error) {
	q = &queue{mem: mem, lanes: lanes}
	if q.arm, err = ArmAt(mem, 0); err == nil {
		q.hints, err = MapHints(mem[offHints:offLanes], lanes)
	}
	return q, err
}

// orderName is the order in a word.
func orderName(o ring.Order) string {
	if o == ring.Release {
		return "release"
	}
	return "seq-cst"
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func (q *queue) lane(bit int) []byte      { return q.mem[offLanes+bit*laneBytes:][:laneBytes] }
func (q *queue) row(bit int) *Row         { return must(RowAt(q.lane(bit), 0)) }
func (q *queue) tail(bit int) *ring.Index { return must(ring.IndexAt(q.lane(bit), 128)) }
func (q *queue) head(bit int) *ring.Index { return must(ring.IndexAt(q.lane(bit), 256)) }
func (q *queue) sol(bit int) *ring.Index  { return must(ring.IndexAt(q.lane(bit), 384)) }
func (q *queue) slots(bit int) []uint64 {
	return must(ring.Slots[uint64](q.lane(bit)[512:]))
}

// String is what a watchdog prints of a queue that hangs.
func (q *queue) String() string {
	var s strings.Builder
	fmt.Fprintf(&s, "armed %#x %+v", q.arm.Word.Load(), Inspect(q.arm.Word.Load(), q.hints))
	for bit := range q.lanes {
		if q.tail(bit).Load() != q.head(bit).Load() || q.lanes < 4 {
			fmt.Fprintf(&s, "\n lane %d: parked %d tail %d head %d index %d", bit,
				q.row(bit).Parked.Load(), q.tail(bit).Load(), q.head(bit).Load(),
				q.row(bit).Index.Load())
		}
	}
	return s.String()
}

// writer is a producer of one lane.
type writer struct {
	*Ringer
	prod *ring.Producer[uint64]
}

func (q *queue) writer(bit int, o ring.Order, more ...func(*RingerConfig)) *writer {
	w := &writer{prod: ring.NewProducer(q.tail(bit), q.head(bit), q.slots(bit),
		q.tail(bit).Load(), o)}
	c := RingerConfig{Row: q.row(bit), Arm: q.arm, Hints: q.hints, Bit: bit}
	if o == ring.Release {
		c.Fence = w.prod.Republish
	}
	for _, f := range more {
		f(&c)
	}
	w.Ringer = NewRinger(c)
	return w
}

// put publishes up to n entries as one batch and rings; it returns how many fitted.
func (w *writer) put(n int) int {
	n = w.publish(n)
	if n > 0 {
		w.Published(w.prod.Tail(), 0)
	}
	return n
}

// publish is P1 alone.
func (w *writer) publish(n int) int {
	a, b := w.prod.Reserve(n)
	at := w.prod.Tail()
	for _, span := range [][]uint64{a, b} {
		for i := range span {
			span[i] = at
			at++
		}
	}
	if n = len(a) + len(b); n > 0 {
		w.prod.Commit(n)
	}
	return n
}

// pace makes a producer's pauses as irregular as life: mostly none, sometimes long enough for the
// reader to fall asleep.
type pace struct{ *rand.Rand }

func newPace(seed uint64) pace { return pace{rand.New(rand.NewPCG(seed, 77))} }

func (p pace) pause() {
	switch x := p.IntN(1000); {
	case x < 4:
		time.Sleep(time.Duration(p.IntN(200)) * time.Microsecond)
	case x < 40:
		runtime.Gosched()
	case x < 80:
		spin.Pause(uint32(p.IntN(300)))
	}
}

// run publishes until the lane's history has total entries.
func (w *writer) run(total uint64, p pace) error {
	for w.prod.Tail() < total {
		n := 1
		if p.IntN(4) == 0 {
			n += p.IntN(laneSlots)
		}
		if w.put(int(min(uint64(n), total-w.prod.Tail()))) == 0 {
			if w.prod.Err() != nil {
				return w.prod.Err()
			}
			runtime.Gosched()
		}
		p.pause()
	}
	return nil
}

var watchdog = shmtest.Watchdog

// roles are what child processes of these tests do; files for one system add to them.
var roles = map[string]func(){}

func TestMain(m *testing.M) { shmtest.Main(m, roles) }
