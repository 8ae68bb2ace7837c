package torture

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/stage"
)

// needUsers skips where processes of other users cannot be had.
func needUsers(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		shmtest.Require(t, "root", errors.New("only root starts processes of other users"))
	}
}

// TestReadersAreFollowed: between users, with readers that have successors.
func TestReadersAreFollowed(t *testing.T) {
	shmtest.Conforms(t)
	shmtest.Long(t)
	areFollowed(t, &queuesBetween)
}

// TestEventReadersAreFollowed: likewise, with event queues.
func TestEventReadersAreFollowed(t *testing.T) {
	shmtest.Conforms(t)
	areFollowed(t, &eventsBetween)
}

func areFollowed(t *testing.T, b *between) {
	needUsers(t)
	played := map[string]uint64{}
	for seed := uint64(3); ; seed++ { // whom kills hit, and how readers wait, is chance
		r, err := Run(t.Context(), Options{Roles: []string{b.writer}, Kills: 60,
			Duration: time.Minute, Seed: seed, Steps: crash.On})
		if err != nil {
			t.Fatalf("%v; report %+v", err, r)
		}
		counts, missing := r.Roles[b.reader].Counts, 0
		for _, way := range b.ways {
			if played[way.name] += counts[way.name]; played[way.name] == 0 {
				missing++
			}
		}
		if r.Kills > 0 && r.Read > 0 && counts["turns"] >= 2 && missing == 0 {
			return
		}
		if seed == 13 {
			t.Fatalf("not much of a torture: %+v; ways of waiting: %v", r, played)
		}
	}
}

// TestFindsWhatIsBrokenBetweenUsers: what readers or writers do wrong on purpose is found, and
// counted where it belongs.
func TestFindsWhatIsBrokenBetweenUsers(t *testing.T) {
	shmtest.Long(t)
	needUsers(t)
	for _, c := range []struct {
		b     *between
		spoil string
		found func(*Found) uint64
	}{
		{&queuesBetween, spoilMark, func(f *Found) uint64 { return f.Duplicate }},
		{&eventsBetween, spoilMark, func(f *Found) uint64 { return f.Duplicate }},
		{&eventsBetween, spoilSkip, func(f *Found) uint64 { return f.Lost }},
		{&eventsBetween, spoilText, func(f *Found) uint64 { return f.Unpublished }},
	} {
		t.Run(c.b.reader+": "+c.spoil, func(t *testing.T) {
			r, err := Run(t.Context(), Options{Roles: []string{c.b.reader},
				Duration: 5 * time.Minute, Seed: 2, spoil: c.spoil})
			if !errors.Is(err, ErrViolation) || c.found(&r.Roles[c.b.reader].Found) == 0 {
				t.Errorf("%v; report %+v", err, r)
			}
		})
	}
}

// calmPlace is a place with one reader of process 70, which has the queue 9, and of what writer 1
// published in its fourth session it has seen 2 of 5.
func calmPlace(t *testing.T, b *between) (*supervisor, *proc, session, func()) {
	l := ledgerOf(t)
	p := &proc{role: roleOf(b.reader), place: 3}
	var end func()
	p.Process, end = stage.Pretend(70)
	roles := []*role{roleOf(b.reader), roleOf(b.writer)}
	s := &supervisor{ledger: l, procs: []*proc{p}, roles: roles, notes: newNotices(),
		report: newReport(Options{}, roles), found: map[string]Found{}}
	readers, ss := l.region(b.reader), l.sessions(b.writer)
	readers[othersHolder].Store(9)
	readers[heldBy].Store(70)
	ss.count(1).Store(4)
	b.shared(l)[othersWith+1].Store(9)
	e := ss.at(1, 4)
	e.reader.Store(9)
	e.published.Store(5)
	e.seen.Store(2)
	return s, p, e, end
}

// TestVigil: what is there and not seen is found when the reader could run for so long, and neither
// it nor what it saw has changed.
func TestVigil(t *testing.T) {
	b := &eventsBetween
	s, p, e, end := calmPlace(t, b)
	readers, who := s.ledger.region(b.reader), b.there(s)
	var v vigil
	const second = time.Second
	for i, c := range []struct {
		do                func()
		own, reader, want time.Duration
	}{
		{func() {}, 5 * second, 7 * second, 0}, // from here on
		{func() {}, 6 * second, 9 * second, second},
		{func() {}, 6*second + vigilEvery/2, 9 * second, second}, // too soon to tell
		{func() {}, 9 * second, 10 * second, 2 * second},
		{func() {}, 19 * second, 10 * second, 2 * second}, // it could not run
		{func() { e.seen.Store(3) }, 20 * second, 11 * second, 0},
		{func() {}, 21 * second, 12 * second, second},
		{func() { e.reader.Store(8) }, 22 * second, 13 * second, 0}, // on its way to the reader
		{func() {}, 23 * second, 14 * second, 0},
		{func() { e.reader.Store(9) }, 24 * second, 15 * second, 0},
		{func() {}, 25 * second, 16 * second, second},
		{func() { readers[othersHolder].Store(10); e.reader.Store(10) }, 26 * second, 17 * second, 0},
		{func() {}, 27 * second, 18 * second, second},
		{func() { readers[heldBy].Store(0) }, 28 * second, 19 * second, 0}, // it leaves
		{func() {}, 29 * second, 20 * second, 0},
	} {
		c.do()
		s.ledger.word(wordLived + p.place).Store(uint64(c.reader))
		if b.unseen(s, &v.now) == "" {
			t.Errorf("%d: nothing is missing", i)
		}
		if got := v.look(s, who, c.own); got != c.want {
			t.Errorf("%d: %v, want %v", i, got, c.want)
		}
	}
	e.seen.Store(5)
	if missing := b.unseen(s, &v.now); missing != "" {
		t.Error(missing)
	}
	if end(); b.there(s) != nil {
		t.Error("somebody is there")
	}
}

// TestCalm: nobody is to post until everything is seen, and everybody again when it is.
func TestCalm(t *testing.T) {
	for _, b := range []*between{&queuesBetween, &eventsBetween} {
		s, _, e, _ := calmPlace(t, b)
		words := b.shared(s.ledger)
		ended := make(chan error, 1)
		go func() { ended <- b.calm(s) }()
		for words[othersStill].Load() == 0 {
			nap(time.Millisecond)
		}
		if e.seen.Store(4); words[othersCalms].Load() != 0 {
			t.Errorf("%s: a calm ended while something was not seen", b.reader)
		}
		e.seen.Store(5)
		if err := <-ended; err != nil || words[othersStill].Load() != 0 ||
			words[othersCalms].Load() != 1 || len(s.report.Violations) != 0 {
			t.Errorf("%s: %v, still %d, %d calms: %v", b.reader, err, words[othersStill].Load(),
				words[othersCalms].Load(), s.report.Violations)
		}
	}
}
