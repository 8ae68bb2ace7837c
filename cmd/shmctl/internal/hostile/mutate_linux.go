package hostile

import (
	"context"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/futex"
	memory "github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/shm"
)

// area is one mapping that this process may write and peers may read.
type area struct {
	mem      []byte
	words    []atomic.Uint64 // over it
	sections []span          // none if it is a part of an object
}

// span is a section of an object, in words.
type span struct{ from, to int }

// areas finds all memory of this process that others see, whatever the library has it for: objects
// below the directory of the run, and memfds whose names begin so.
func areas(dir, memfds string) []area {
	text, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return nil
	}
	var found []area
	for line := range strings.Lines(string(text)) {
		if !strings.Contains(line, " rw-s ") || !strings.Contains(line, dir+"/") &&
			!strings.Contains(line, "memfd:shmring:"+memfds) {
			continue
		}
		var from, to uintptr
		if n, _ := fmt.Sscanf(line, "%x-%x", &from, &to); n != 2 {
			continue
		}
		found = append(found, areaAt(from, to-from))
	}
	return found
}

func areaAt(at, length uintptr) area {
	mem := memoryAt(at, length)
	a := area{mem: mem, words: memory.Overlays[atomic.Uint64](mem)}
	page := make([]byte, min(4096, length))
	for i := range page {
		page[i] = byte(a.words[i/8].Load() >> (i % 8 * 8))
	}
	h, err := shm.DecodeHeader(page, uint64(length))
	if err != nil {
		return a
	}
	for _, s := range h.Sections {
		from, to := int(s.Offset/8), int((s.Offset+s.Length)/8)
		if to <= len(a.words) && from < to {
			a.sections = append(a.sections, span{from, to})
		}
	}
	return a
}

// scribbler writes to areas from a thread of its own.
type scribbler struct {
	rnd   *rand.Rand
	count *uint64    // of mutations
	old   [16]uint64 // what stood somewhere once
	// streams says that lanes are of connections.
	streams bool
}

// aim says where a scribbler writes for a while.
type aim int

const (
	aimIndices aim = iota // the first words of each section, where indices and states are
	aimData               // entries, records, payload
	aimHeader             // page 0
	aimAny
	aimForward // indices, a little further than they are
	aimFields  // of endpoints: messages and rows that are right but for some field
	aims
)

// scribble writes until the context ends, at full speed in bursts: between them those who look get
// the processor, if there is one only.
func (s *scribbler) scribble(ctx context.Context, all []area, what aim) {
	runtime.LockOSThread() // never unlocked: the thread ends with it
	pin()
	for ctx.Err() == nil {
		n := 1 << s.rnd.IntN(10)
		a := &all[s.rnd.IntN(len(all))]
		switch {
		case what == aimFields && a.isOutbox():
			s.forgeNext(a)
		case what == aimFields && a.isEndpoint():
			s.forgeRow(a)
		default:
			for range n {
				at := s.pick(a, what)
				word := &a.words[at]
				s.store(word, s.value(word, what))
			}
		}
		if s.rnd.IntN(4) == 0 {
			lower := 2 * s.pick(a, aimIndices)
			futex.WakeAll(&memory.Overlays[atomic.Uint32](a.mem)[lower])
		}
		time.Sleep(time.Duration(s.rnd.IntN(60)) * time.Microsecond)
	}
}

func (s *scribbler) store(word *atomic.Uint64, v uint64) {
	if s.rnd.IntN(16) == 0 {
		s.old[s.rnd.IntN(len(s.old))] = word.Load()
	}
	word.Store(v)
	add(s.count, 1)
}

// isOutbox reports whether the sections are those of an endpoint's outbox: lanes, slots, what
// receivers are done with, and a pool.
func (a *area) isOutbox() bool {
	return len(a.sections) == 4 && a.sections[1].to-a.sections[1].from >= 8*outboxSlotWords
}

const outboxSlotWords = 32

// isEndpoint reports whether the sections begin with page and rows of an endpoint.
func (a *area) isEndpoint() bool {
	return len(a.sections) >= 3 && a.sections[0].to-a.sections[0].from == memory.FabricPageBytes/8 &&
		(a.sections[1].to-a.sections[1].from)%outboxSlotWords == 0
}

// forgeNext publishes a message in the first lane.
func (s *scribbler) forgeNext(a *area) {
	lane := &memory.Overlays[memory.FabricLane](a.section(0))[0]
	slots := memory.Overlays[memory.FabricSlot](a.section(1))
	slots = slots[:min(uint64(len(slots)), 1<<(bits.Len64(lane.Slots.Load()|2)-1))]
	pool := a.sections[3].to - a.sections[3].from
	m := mint{s.rnd, 3}
	if i, x := newest(slots), uint64(8*pool); s.streams {
		m.odds = 6
		m.stream(slots, i, x, firstNumber)
	} else {
		m.slot(slots, i, x)
	}
	add(s.count, 1)
	lane.Rung.Add(1)
	futex.WakeAll(&lane.Rung)
}

// forgeRow writes what the first row says.
func (s *scribbler) forgeRow(a *area) {
	row := &memory.Overlays[memory.FabricRow](a.section(1))[0]
	mint{s.rnd, 16}.receive(row, row.Owner.Load(), row.Head.Load(), row.Granted.Load())
	add(s.count, 1)
	row.Rung.Add(1)
	futex.WakeAll(&row.Rung)
}

func (a *area) section(i int) []byte { return a.mem[8*a.sections[i].from : 8*a.sections[i].to] }

func (s *scribbler) pick(a *area, what aim) int {
	if len(a.sections) == 0 || what == aimAny {
		return s.rnd.IntN(len(a.words))
	}
	sec := a.sections[s.rnd.IntN(len(a.sections))]
	switch what {
	case aimHeader:
		return s.rnd.IntN(min(512, len(a.words)))
	case aimIndices, aimForward:
		return sec.from + s.rnd.IntN(min(sec.to-sec.from, []int{1, 4, 72}[s.rnd.IntN(3)]))
	}
	sec = a.sections[len(a.sections)-1-s.rnd.IntN(min(2, len(a.sections)))]
	at := sec.from + s.rnd.IntN(sec.to-sec.from)
	if s.rnd.IntN(4) == 0 { // the last word of an entry says what it is
		at = min(at|7, sec.to-1)
	}
	return at
}

// value returns something to write over a word: chosen for what it might do, or random.
func (s *scribbler) value(word *atomic.Uint64, what aim) uint64 {
	is := word.Load()
	if what == aimForward {
		return is + uint64(s.rnd.IntN(4))
	}
	capacity, x := uint64(1)<<s.rnd.IntN(13), s.rnd.Uint64() // drawn once: stores are to be fast
	kind := is&^0xff | x>>26%16                              // and mark of an entry, of any sequence
	chosen := [...]uint64{0, 1, ^uint64(0), capacity, capacity + 1, capacity - 1, is + 1, is - 1,
		is + capacity, is - capacity - 1, 1 << 31, 1<<32 + x%3 - 1, 1 << 63, ^(x >> 2 % 64),
		s.old[x>>8%uint64(len(s.old))], is ^ 1<<(x>>12%64), kind, kind, is<<16 | x>>32&0xffff,
		is &^ (1<<48 - 1)} // another region
	if at := s.rnd.IntN(len(chosen) + 2); at < len(chosen) {
		return chosen[at]
	}
	return s.rnd.Uint64() >> s.rnd.IntN(64)
}

// pin keeps the thread on the last processor, away from most others.
func pin() {
	var set unix.CPUSet
	if unix.SchedGetaffinity(0, &set) != nil || set.Count() < 2 {
		return
	}
	for cpu := 1023; cpu >= 0; cpu-- {
		if set.IsSet(cpu) {
			set.Zero()
			set.Set(cpu)
			_ = unix.SchedSetaffinity(0, &set)
			return
		}
	}
}

// raid scribbles over everything that this process has for a while, in which a guest plays.
func (c *child) raid(g *guest) {
	if g.begin != nil {
		g.begin()
	}
	all := areas(c.Shm, c.s.memfds)
	if len(all) == 0 {
		return
	}
	ctx, cancel := limited(time.Duration(1+c.rnd.IntN(30)) * time.Millisecond)
	defer cancel()
	var busy sync.WaitGroup
	s := &scribbler{rnd: c.split(), count: &c.did.Mutations, streams: g.streams}
	what := aim(c.rnd.IntN(int(aims)))
	if c.s.memfds == metName && c.rnd.IntN(2) == 0 {
		what = aimFields
	}
	if c.Spoil != spoilTame {
		busy.Go(func() { s.scribble(ctx, all, what) })
	}
	busy.Go(func() { flood(ctx, s.count) })
	for _, do := range []func(){g.play, g.drain} {
		if do != nil {
			busy.Go(func() {
				for ctx.Err() == nil {
					do()
				}
			})
		}
	}
	busy.Wait()
}

// flood writes to every pipe that came with a rendezvous, as fast as it goes.
func flood(ctx context.Context, count *uint64) {
	for pipes := pipes(); ctx.Err() == nil; time.Sleep(100 * time.Microsecond) {
		for _, fd := range pipes {
			if n, _ := unix.Write(fd, make([]byte, 16)); n > 0 {
				add(count, 1)
			}
		}
	}
}

// pipes returns the writing ends of pipes, but those of the standard streams.
func pipes() (fds []int) {
	entries, _ := os.ReadDir("/proc/self/fd")
	for _, e := range entries {
		var fd int
		if _, err := fmt.Sscan(e.Name(), &fd); err != nil || fd < 3 {
			continue
		}
		link, _ := os.Readlink("/proc/self/fd/" + e.Name())
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
		if err == nil && strings.HasPrefix(link, "pipe:") && flags&unix.O_ACCMODE == unix.O_WRONLY {
			_ = unix.SetNonblock(fd, true)
			fds = append(fds, fd)
		}
	}
	return fds
}
