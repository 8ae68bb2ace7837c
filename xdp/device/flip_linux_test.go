package device

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest/flip"
	"github.com/shmring/shmring/shm"
)

// flipTB is what a rig needs of a test, in a child that is none.
type flipTB struct {
	testing.TB
	undo []func()
}

func (t *flipTB) Helper()                  {}
func (t *flipTB) Context() context.Context { return context.Background() }
func (t *flipTB) Cleanup(f func())         { t.undo = append(t.undo, f) }
func (t *flipTB) Fatal(args ...any)        { panic(fmt.Sprint(args...)) }
func (t *flipTB) Skipf(format string, args ...any) {
	t.Fatalf(format, args...)
}
func (t *flipTB) Fatalf(format string, args ...any) {
	panic(fmt.Sprintf(format, args...))
}
func (t *flipTB) end() {
	for _, f := range slices.Backward(t.undo) {
		f()
	}
}

// Sections of a lane, as package cq lays them out.
const (
	flipLaneWords shm.SectionKind = 0x103
	flipLaneSlots shm.SectionKind = 0x104
)

// flipCommand is a device process whose application is attacked while a command of its is carried
// out. What the application may write is its lane.
type flipCommand struct {
	command func(r *fuzzRig) cq.Entry

	t     *flipTB
	r     *fuzzRig
	lane  *flip.Object
	entry cq.Entry
	err   error
}

// FlipScenes are the calls of a device process that are attacked by TestFlip.
func FlipScenes() map[string]flip.Scene {
	scenes := map[string]flip.Scene{}
	to := netip.AddrPortFrom(fuzzFour, 53)
	at := func(r *fuzzRig, e cq.Entry, region uint16) cq.Entry {
		e.Buf = shm.MakeRef(region, e.Buf.Offset())
		return e
	}
	for name, command := range map[string]func(r *fuzzRig) cq.Entry{
		"send": func(r *fuzzRig) cq.Entry {
			return at(r, sendCommand(1, sendFlags, 0, 100, fuzzPort, to), r.a.payload.ID())
		},
		"inject": func(r *fuzzRig) cq.Entry {
			return at(r, sendCommand(1, injectFlags, fuzzSlotBytes, 1472, fuzzPort, to),
				r.a.payload.ID())
		},
		"return": func(r *fuzzRig) cq.Entry {
			return cq.Entry{Context: 1, Flags: returnFlags, Data: fuzzGeneration,
				Buf: shm.MakeRef(r.a.umem.Region().ID(), 0)}
		},
	} {
		s := &flipCommand{command: command}
		scenes[name] = flip.Scene{Prepare: s.prepare, Call: s.call, Result: s.result}
	}
	return scenes
}

func (s *flipCommand) renew() {
	if s.t != nil {
		s.t.end()
	}
	s.t = &flipTB{}
	dir, err := shm.OpenDir("")
	must(s.t, err)
	defer dir.Close()
	for _, name := range []string{"app", "commands"} { // of the rig before
		_ = os.RemoveAll(dir.Path() + "/" + name)
	}
	s.lane, err = flip.AddedWith("/commands/", flipLaneSlots, func() (int, error) {
		s.r = newFuzzRig(s.t, false)
		must(s.t, s.r.asker.Post(&cq.Entry{Flags: returnFlags}))
		s.r.turn(s.t)
		return s.r.asker.Lane(), nil
	})
	must(s.t, err)
}

func (s *flipCommand) prepare() []flip.Word {
	if s.r == nil || s.r.a.dead != nil {
		s.renew()
	}
	a := s.r.a
	if !a.pool.loaned[0] {
		if frame, ok := a.pool.loan(fuzzGeneration); frame != 0 || !ok {
			s.t.Fatal("frame 0 is not free")
		}
	}
	s.r.sent = s.r.sent[:0]
	s.r.answers(s.t)
	at := s.r.asker.Next() % uint64(s.r.asker.Stats().Size) * 64
	s.entry = s.command(s.r)
	must(s.t, s.r.asker.Post(&s.entry))
	lane := uint32(s.r.asker.Lane())
	words, err := s.lane.Words("lane", flipLaneWords, lane, 0, 8, 16, 256, 264, 272, 512)
	must(s.t, err)
	for i := range 3 {
		words[i].Index = true
	}
	more, err := s.lane.Words("slot", flipLaneSlots, lane, at, at+8, at+16, at+24, at+32, at+40, at+48,
		at+56)
	must(s.t, err)
	for i := range more {
		more[i].Name = fmt.Sprintf("slot+%d", 8*i)
	}
	s.err = nil
	return append(words, more...)
}

func (s *flipCommand) call() {
	s.r.en.now++
	s.r.en.takeCommands()
}

func (s *flipCommand) result() (o flip.Outcome) {
	defer func() {
		if r := recover(); r != nil {
			o.Broken = fmt.Sprint(r)
		}
	}()
	a := s.r.a
	if o.Poisoned = a.dead != nil; a.dead == nil {
		s.rest()
	}
	if a.dead != nil && !errors.Is(a.dead, cq.ErrCorrupt) {
		o.Broken = a.dead.Error()
		return o
	}
	contexts, why := s.r.answers(s.t)
	o.Shape = fmt.Sprintf("frame 0 is out: %v; %d answers, error %d; packets:", a.pool.loaned[0],
		len(contexts), why)
	for _, p := range s.r.sent {
		o.Shape += fmt.Sprintf(" %d bytes", len(p))
	}
	for _, c := range contexts {
		if c == s.entry.Context {
			c = 0
		}
		o.Data = append(o.Data, c)
	}
	return o
}

// rest has all sends end, unless the application is given up now: it has no connection to be hung
// up, so no round is made after that.
func (s *flipCommand) rest() {
	a := s.r.a
	for range 20 {
		s.r.en.now += parkedNs / 4
		if s.r.en.takeCommands(); a.dead != nil {
			return
		}
		_, err := s.r.en.Round(s.r.en.now)
		must(s.t, err)
	}
	if a.underWay != 0 || a.parked.count != 0 || len(s.r.en.sends.free) != len(s.r.en.sends.rows) ||
		len(a.pool.free)+a.pool.out != 32 {
		panic(fmt.Sprintf("%d sends under way, %d parked", a.underWay, a.parked.count))
	}
}
