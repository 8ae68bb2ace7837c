package cq_test

import (
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// ledger checks the log of all readers against what the lanes published.
type ledger struct {
	next  map[uint64]uint64 // by lane: first index not seen yet
	mine  map[uint64]uint64 // by lane: what the present reader must see next
	again int
	all   int

	log    *os.File
	offset int64
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
		if k, _ := fmt.Sscanf(n.Name, "lane-%d", &lane); k != 1 {
			continue
		}
		obj, err := sub.Open(n.Name, shm.ReadOnly)
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
			q, err := cq.Create(d, name, cq.Options{Size: 64, MaxLanes: 8})
			must(t, err)
			must(t, q.Detach())
			path := filepath.Join(t.TempDir(), "log")
			log, err := os.Create(path)
			must(t, err)
			defer log.Close()
			l := &ledger{next: map[uint64]uint64{}, log: log}

			newWriter := func() *child {
				c := startChild(t, "writer", envQueue+"="+name, envLanes+"=2")
				_ = c.line(t)
				return c
			}
			writers := []*child{newWriter(), newWriter(), newWriter()}
			var reader *child
			for range rounds {
				reader = startChild(t, "reader", envQueue+"="+name, envLog+"="+path)
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
			reader = startChild(t, "reader", envQueue+"="+name, envLog+"="+path)
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
			q, err = cq.Adopt(d, name, cq.Options{})
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
