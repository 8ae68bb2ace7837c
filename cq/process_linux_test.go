package cq_test

import (
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// readLanes reads from blocking calls until want entries came and checks order and content.
func readLanes(t *testing.T, q *cq.Queue, next map[uint64]uint64, want uint64) {
	t.Helper()
	dst := make([]cq.Entry, 40)
	for got := uint64(0); got < want; {
		n, err := sread(q, dst, time.Minute)
		if err != nil {
			t.Fatalf("after %d of %d: %v", got, want, err)
		}
		for _, e := range dst[:n] {
			if e.Tag != next[e.Context] || e.Data != ^e.Tag || e.Meta.Seq() != uint32(e.Tag) {
				t.Fatalf("lane %d: %+v, want index %d", e.Context, e, next[e.Context])
			}
			next[e.Context]++
		}
		got += uint64(n)
	}
}

// TestManyProcesses has 20 writers in 5 processes, for every wait object and both ways to pay for
// order.
func TestManyProcesses(t *testing.T) {
	shmtest.Long(t)
	const processes, lanes, each = 5, 4, 2000
	for _, tt := range []cq.Options{
		{Wait: cq.WaitUnspec}, {Wait: cq.WaitUnspec, WritersPay: true, Spin: -1},
		{Wait: cq.WaitFD, Spin: -1}, {Wait: cq.WaitYield},
	} {
		t.Run(fmt.Sprint(tt.Wait, tt.WritersPay), func(t *testing.T) {
			tt.Size = 32
			d, q := create(t, tt)
			var ws []*child
			for range processes {
				ws = append(ws, startChild(t, "writer", envQueue+"="+q.Name(),
					envLanes+"="+fmt.Sprint(lanes), envCount+"="+fmt.Sprint(each)))
			}
			next := map[uint64]uint64{}
			readLanes(t, q, next, processes*lanes*each)
			for _, w := range ws {
				_ = w.stop(t)
			}
			if len(next) != processes*lanes {
				t.Errorf("%d lanes", len(next))
			}
			for lane, n := range next {
				if n != each {
					t.Errorf("lane %d: %d entries", lane, n)
				}
			}
			if rest := drain(t, q); len(rest) != 0 {
				t.Errorf("%d entries too many", len(rest))
			}
			must(t, q.Close())
			if left, err := d.List(); len(left) != 0 {
				t.Errorf("left behind: %v, %v", left, err)
			}
		})
	}
}

// TestWriterClosed: a lane that was given back goes to the next writer, also in this process and
// with what nobody has read yet.
func TestWriterClosed(t *testing.T) {
	for _, at := range []site{{}, {memfd: true}} {
		t.Run(at.String(), func(t *testing.T) {
			q := at.create(t, cq.Options{Size: 8, MaxLanes: 2})
			a, b := at.attach(t, q), at.attach(t, q)
			_, err := at.tryAttach(t, q)
			wantErr(t, "a third of two", err, cq.ErrLanes, syscall.ENOSPC)
			post(t, a, 0, 3)
			_, _, err = a.Reserve(2) // never published
			must(t, err)
			must(t, a.Close())
			a = at.attach(t, q)
			if a.Lane() != 1 || a.Next() != 3 || a.Free() != 5 {
				t.Errorf("lane %d, next %d, free %d", a.Lane(), a.Next(), a.Free())
			}
			post(t, a, 3, 5)
			post(t, b, 100, 101)
			got := drain(t, q)
			slices.Sort(got)
			if want := []uint64{0, 1, 2, 3, 4, 100}; !slices.Equal(got, want) {
				t.Errorf("got %v, want %v", got, want)
			}
			if s := a.Stats(); s.Posted != 5 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// TestBlockedReaderDies: a successor finds what came while the queue had no reader, and sleeps and
// wakes as its predecessor did.
func TestBlockedReaderDies(t *testing.T) {
	t.Parallel()
	for _, wait := range blocking {
		t.Run(wait.String(), func(t *testing.T) {
			d, q := create(t, cq.Options{Size: 8, Wait: wait, Spin: -1})
			w := attach(t, d, q.Name())
			_, err := sread(q, make([]cq.Msg, 1), time.Millisecond) // lanes are parked
			wantErr(t, "nothing", err, cq.ErrTimedOut)
			must(t, q.Detach())
			for i := range uint64(5) {
				c := startChild(t, "reader", envQueue+"="+q.Name(), envLog+"=/dev/null")
				_ = c.line(t)
				post(t, w, 10*i, 10*i+4)
				eventually(t, "the child has read", func() bool { return w.Free() == 8 })
				c.kill()
				post(t, w, 10*i+4, 10*i+6)
				q, err := cq.Open(cq.Named(d, q.Name()), cq.Options{Existing: true, Spin: -1})
				must(t, err)
				if got := drain(t, q); !slices.Equal(got, upTo(10*i+4, 10*i+6)) {
					t.Error(got)
				}
				wait := later(func() { post(t, w, 99, 100) })
				if n, err := sread(q, make([]cq.Msg, 1), time.Minute); n != 1 || err != nil {
					t.Error(n, err)
				}
				wait()
				must(t, q.Detach())
			}
			q, err = cq.Open(cq.Named(d, q.Name()), cq.Options{Existing: true})
			must(t, err)
			must(t, q.Close())
		})
	}
}

// ledger checks the log of all readers against what the lanes published.
type ledger struct {
	next  map[uint64]uint64 // by lane: first index not seen yet
	mine  map[uint64]uint64 // by lane: what the present reader must see next
	again int
	all   int

	log    *os.File
	offset int64
}

// newLedger returns one over a log that is there for readers to write to.
func newLedger(t *testing.T) *ledger {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	must(t, err)
	t.Cleanup(func() { _ = log.Close() })
	return &ledger{next: map[uint64]uint64{}, log: log}
}

// add takes one record.
func (l *ledger) add(r uint64) error {
	if r == logStart {
		l.mine = map[uint64]uint64{}
		return nil
	}
	lane, again, tag := r>>48, r&logAgain != 0, r&(logAgain-1)
	l.all++
	if lane == 0 {
		return fmt.Errorf("record %d: an entry with foreign bytes", l.all)
	}
	if want, ok := l.mine[lane]; ok && tag != want {
		return fmt.Errorf("record %d: lane %d goes from %d to %d", l.all, lane, want-1, tag)
	}
	l.mine[lane] = tag + 1
	switch next := l.next[lane]; {
	case tag > next:
		return fmt.Errorf("record %d: lane %d: %d to %d are missing", l.all, lane, next, tag-1)
	case tag < next && !again:
		return fmt.Errorf("record %d: lane %d: %d came twice and is not marked", l.all, lane, tag)
	case tag == next:
		l.next[lane]++
	}
	if again {
		l.again++
	}
	return nil
}

// read takes what the log has new.
func (l *ledger) read(t *testing.T) {
	t.Helper()
	text := make([]byte, 1<<20)
	for {
		n, err := l.log.ReadAt(text, l.offset)
		for i := 0; i+8 <= n; i += 8 {
			if err := l.add(binary.LittleEndian.Uint64(text[i:])); err != nil {
				t.Fatal(err)
			}
			l.offset += 8
		}
		if err == io.EOF {
			return
		}
		must(t, err)
	}
}

// complete reports whether every lane was seen up to its tail.
func (l *ledger) complete(tails map[uint64]uint64) bool {
	for lane, tail := range tails {
		if l.next[lane] != tail {
			return false
		}
	}
	return true
}

// tailsOf reads how much each lane of a queue published.
func tailsOf(t *testing.T, d *shm.Dir, name string) map[uint64]uint64 {
	t.Helper()
	sub, err := d.Sub(name, false)
	must(t, err)
	defer sub.Close()
	names, err := sub.List()
	must(t, err)
	tails := map[uint64]uint64{}
	for _, n := range names {
		var lane uint64
		if k, _ := fmt.Sscanf(n.Name(), "lane-%d", &lane); k != 1 {
			continue
		}
		obj, err := sub.Open(n.Name(), shm.ReadOnly)
		must(t, err)
		mem, _, err := obj.Section(cq.SectLane, uint32(lane))
		must(t, err)
		tails[lane] = binary.LittleEndian.Uint64(mem)
		must(t, obj.Close())
	}
	return tails
}

// TestReaderKilledAndReplaced kills readers at random moments while processes write at full speed:
// nothing is missing, order holds, and what comes twice is marked. In the second form writers
// are killed and replaced as well.
func TestReaderKilledAndReplaced(t *testing.T) {
	shmtest.Long(t)
	for _, mode := range []string{"readers", "readers and writers"} {
		t.Run(mode, func(t *testing.T) {
			const rounds = 22
			seed := uint64(time.Now().UnixNano())
			t.Logf("seed %d", seed)
			rng := rand.New(rand.NewPCG(seed, 0))
			d := openDir(t)
			name := queueName(t)
			q, err := cq.Create(cq.Named(d, name), cq.Options{Size: 64, MaxLanes: 8})
			must(t, err)
			must(t, q.Detach())
			l := newLedger(t)

			newWriter := func() *child {
				c := startChild(t, "writer", envQueue+"="+name, envLanes+"=2")
				_ = c.line(t)
				return c
			}
			writers := []*child{newWriter(), newWriter(), newWriter()}
			var reader *child
			for range rounds {
				reader = startChild(t, "reader", envQueue+"="+name, envLog+"="+l.log.Name())
				_ = reader.line(t)
				time.Sleep(time.Duration(rng.IntN(40_000)) * time.Microsecond)
				if mode != "readers" && rng.IntN(2) == 0 {
					i := rng.IntN(len(writers))
					writers[i].kill()
					writers[i] = newWriter()
				}
				reader.kill()
				l.read(t)
			}
			reader = startChild(t, "reader", envQueue+"="+name, envLog+"="+l.log.Name())
			for _, w := range writers {
				_ = w.stop(t)
			}
			tails := tailsOf(t, d, name)
			eventually(t, "the last reader has seen all", func() bool {
				l.read(t)
				return l.complete(tails)
			})
			reader.kill()
			t.Logf("%d entries in %d lanes, %d marked as redelivered", l.all, len(tails), l.again)
			q, err = cq.Open(cq.Named(d, name), cq.Options{Existing: true})
			must(t, err)
			rest := make([]cq.Msg, 200)
			for n := 1; n > 0; {
				n, err = cq.Read(q, rest)
				for _, e := range rest[:n] {
					if e.Flags&cq.FlagRedelivered == 0 {
						t.Fatalf("an entry that nobody saw: %+v", e)
					}
				}
			}
			wantErr(t, "then", err, cq.ErrWouldBlock)
			must(t, q.Close())
		})
	}
}
