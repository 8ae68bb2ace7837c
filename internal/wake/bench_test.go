package wake

import (
	"fmt"
	"testing"

	"github.com/shmring/shmring/internal/spin"
	"github.com/shmring/shmring/ring"
)

// What a producer pays for the bell while the reader is awake: a publish alone, and with the look.
func BenchmarkPublished(b *testing.B) {
	for _, o := range orders {
		for _, batch := range []int{1, 32} {
			for _, bell := range []bool{false, true} {
				b.Run(fmt.Sprintf("%v/batch=%d/bell=%v", o, batch, bell), func(b *testing.B) {
					b.ReportAllocs()
					q := heapQueue(b, 1)
					r := newReader(q, readerOptions{order: o})
					w := q.writer(0, o)
					w.put(1)
					r.read(1)
					for b.Loop() {
						n := w.publish(batch)
						if bell && w.Published(w.prod.Tail(), 0) != 0 {
							b.Fatal("parked")
						}
						a, c := r.cons[0].Peek(n)
						r.cons[0].Release(len(a) + len(c))
					}
				})
			}
		}
	}
}

// What a reader pays to park a lane that was hot and find it empty.
func BenchmarkPark(b *testing.B) {
	for _, o := range orders {
		b.Run(orderName(o), func(b *testing.B) {
			registered(b, o)
			b.ReportAllocs()
			q := heapQueue(b, 1)
			r := newReader(q, readerOptions{order: o})
			w := q.writer(0, o)
			for b.Loop() {
				w.put(1) // only a lane with something gets hot
				r.read(1)
				if more, err := r.Park(); more || err != nil {
					b.Fatal(more, err)
				}
			}
		})
	}
}

func BenchmarkNow(b *testing.B) {
	for b.Loop() {
		spin.Now()
	}
}

// packed is many queues of one lane whose words all lie in one memory object, with a domain over
// them.
func packed(b *testing.B, queues int) *domainQueues {
	b.Helper()
	const (
		row, arm, tail, head, sol = 0, 128, 256, 384, 512
		hints                     = 640
		slots                     = hints + HintsFixedBytes + 128
		size                      = slots + 4*8
	)
	mem := words8(queues * size)
	d := &domainQueues{arm: new(Arm)}
	d.hints = must(MapDomain(words8(int(DomainBytes(queues))), queues))
	d.Domain = NewDomain(d.arm, d.hints, queues)
	for bit := range queues {
		m := mem[bit*size:][:size]
		c := RingerConfig{Row: must(RowAt(m, row)), Arm: must(ArmAt(m, arm)),
			Hints: must(MapHints(m[hints:slots], 1))}
		c.Row.Parked.Store(Parked)
		d.ringer(bit)(&c)
		ix := func(off uint64) *ring.Index { return must(ring.IndexAt(m, off)) }
		lane := must(ring.Slots[uint64](m[slots:]))
		p := &packedLane{Ringer: NewRinger(c), sol: ix(sol),
			prod: ring.NewProducer(ix(tail), ix(head), lane, 0, ring.SeqCst),
			cons: ring.NewConsumer(ix(tail), ix(head), lane, 0)}
		bell := NewBell(Config{Arm: c.Arm, Hints: c.Hints, Lanes: 1})
		bell.Add(0, LaneConfig{Row: c.Row, Source: p, Capacity: 4})
		d.r = append(d.r, &reader{Bell: bell})
		d.lanes = append(d.lanes, p)
	}
	return d
}

type packedLane struct {
	*Ringer
	prod *ring.Producer[uint64]
	cons *ring.Consumer[uint64]
	sol  *ring.Index
}

func (p *packedLane) Level() (head, tail uint64) { return p.cons.Head(), p.cons.Tail() }
func (p *packedLane) Solicited() uint64          { return p.sol.Load() }

// What it costs to find the one queue of many that has an entry, which was just published: the
// whole round from publish to an empty queue. It must not grow with the members.
func benchmarkSet(b *testing.B, call func(s *Set, dst []int) ([]int, error)) {
	for _, queues := range []int{1, 100, 10_000} {
		b.Run(fmt.Sprint(queues), func(b *testing.B) {
			d := packed(b, queues)
			s := d.NewSet()
			for bit := range queues {
				s.Add(bit, d.r[bit].Bell)
			}
			dst := make([]int, 0, 16)
			if got, err := s.Wait(dst, noWait); len(got) > 0 || err != nil {
				b.Fatal(got, err)
			}
			// A few queues get all the entries: going round all of them would measure the caches.
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				at := i % 4 * (queues / 4)
				p := d.lanes[at]
				a, _ := p.prod.Reserve(1)
				a[0] = uint64(i)
				p.prod.Commit(1)
				p.Published(p.prod.Tail(), 0)
				got, err := call(s, dst)
				if err != nil || len(got) != 1 || got[0] != at {
					b.Fatal(got, err, at)
				}
				p.cons.Peek(1)
				p.cons.Release(1)
			}
		})
	}
}

func BenchmarkSetWait(b *testing.B) {
	benchmarkSet(b, func(s *Set, dst []int) ([]int, error) { return s.Wait(dst, Wait{}) })
}

func BenchmarkSetPoll(b *testing.B) {
	benchmarkSet(b, func(s *Set, dst []int) ([]int, error) { return s.Wait(dst, noWait) })
}

// What an arming, its event and the drain cost a channel's user who is awake.
func BenchmarkChannelEvent(b *testing.B) {
	d := packed(b, 1)
	c := d.NewChannel()
	c.Add(0, d.r[0].Bell)
	p := d.lanes[0]
	b.ReportAllocs()
	for i := uint64(0); b.Loop(); i++ {
		if err := c.Arm(0, NotifyAny); err != nil {
			b.Fatal(err)
		}
		a, _ := p.prod.Reserve(1)
		a[0] = i
		p.prod.Commit(1)
		p.Published(p.prod.Tail(), 0)
		if _, ok, err := c.Get(noWait); !ok || err != nil {
			b.Fatal(err)
		}
		p.cons.Peek(1)
		p.cons.Release(1)
	}
}
