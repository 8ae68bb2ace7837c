package torture

import (
	"errors"
	"testing"
	"time"

	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/stage"
)

// TestReadersAreFollowed: between users, with readers that have successors.
func TestReadersAreFollowed(t *testing.T) {
	shmtest.Conforms(t)
	shmtest.Long(t)
	areFollowed(t, queuesBetween)
}

// TestEventReadersAreFollowed: likewise, with event queues.
func TestEventReadersAreFollowed(t *testing.T) {
	shmtest.Conforms(t)
	areFollowed(t, eventsBetween)
}

func areFollowed(t *testing.T, b *site) {
	shmtest.RequireRoot(t, "root", "only root starts processes of other users")
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
// counted where it belongs. Readers of queues forget their marks in TestFindsWhatIsBroken: they do
// it by the same lines there.
func TestFindsWhatIsBrokenBetweenUsers(t *testing.T) {
	shmtest.Long(t)
	shmtest.RequireRoot(t, "root", "only root starts processes of other users")
	for _, c := range []struct {
		b     *site
		spoil string
		found func(*Found) uint64
	}{
		{eventsBetween, spoilMark, func(f *Found) uint64 { return f.Duplicate }},
		{eventsBetween, spoilSkip, func(f *Found) uint64 { return f.Lost }},
		{eventsBetween, spoilText, func(f *Found) uint64 { return f.Unpublished }},
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
func calmPlace(t *testing.T, writers string) (s *supervisor, reader, writer *proc, e session,
	end func()) {
	w := roleOf(writers)
	r := roleOf(w.with[0])
	roles := []*role{r, w}
	reader, writer = &proc{role: r, place: 3}, &proc{role: w, place: 4, index: 1}
	reader.Process, end = stage.Pretend(70)
	writer.Process, _ = stage.Pretend(71)
	s = &supervisor{ledger: ledgerOf(t), procs: []*proc{reader, writer}, roles: roles,
		notes: newNotices(), report: newReport(Options{}, roles), found: map[string]Found{}}
	ss := s.ledger.sessions(writers)
	if s.ledger.region(r.name)[heldBy].Store(70); ss.holder != nil {
		ss.holder.Store(9)
	}
	ss.count(1).Store(4)
	s.ledger.word(wordHas + writer.place).Store(9)
	e = ss.at(1, 4)
	e.reader.Store(9)
	e.published.Store(5)
	e.seen.Store(2)
	return s, reader, writer, e, end
}

// TestVigil: what is there and not seen is found when the reader could run for so long, and neither
// it nor what it saw has changed.
func TestVigil(t *testing.T) {
	b := eventsBetween
	s, p, w, e, end := calmPlace(t, b.writer)
	ss, readers, who := s.ledger.sessions(b.writer), s.ledger.region(b.reader),
		s.there(b.reader, b.writer)
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
		{func() { readers[siteHolder].Store(10); e.reader.Store(10) }, 26 * second, 17 * second, 0},
		{func() {}, 27 * second, 18 * second, second},
		{func() { readers[heldBy].Store(0) }, 28 * second, 19 * second, 0}, // it leaves
		{func() {}, 29 * second, 20 * second, 0},
	} {
		c.do()
		s.ledger.word(wordLived + p.place).Store(uint64(c.reader))
		missing, of := s.unseen(ss, who)
		if missing == "" {
			t.Errorf("%d: nothing is missing", i)
		}
		if got := v.look(s, missing, of, c.own); got != c.want {
			t.Errorf("%d: %v, want %v", i, got, c.want)
		}
	}
	e.seen.Store(5)
	if missing, _ := s.unseen(ss, who); missing != "" {
		t.Error(missing)
	}
	e.seen.Store(2)
	w.empty = true
	if missing, _ := s.unseen(ss, who); missing != "" {
		t.Error("what is missing of a dead writer may be gone")
	}
	if end(); len(s.there(b.reader, b.writer)) != 0 {
		t.Error("somebody is there")
	}
}

// TestCalm: nobody is to post until everything is seen, and everybody again when it is.
func TestCalm(t *testing.T) {
	for _, writers := range []string{"writer", "event-writer", "set-writer", "others-writer",
		"others-event-writer"} {
		s, _, w, e, _ := calmPlace(t, writers)
		still, calms := s.ledger.still(writers), s.ledger.sessions(writers).calms()
		ended := make(chan error, 1)
		go func() { ended <- calm(s, w.role) }()
		for still.Load() == 0 {
			nap(time.Millisecond)
		}
		if e.seen.Store(4); calms.Load() != 0 {
			t.Errorf("%s: a calm ended while something was not seen", writers)
		}
		e.seen.Store(5)
		if err := <-ended; err != nil || still.Load() != 0 || calms.Load() != 1 ||
			len(s.report.Violations) != 0 {
			t.Errorf("%s: %v, still %d, %d calms: %v", writers, err, still.Load(), calms.Load(),
				s.report.Violations)
		}
	}
}

// TestLeftBehind: what a dead writer left is missing in a calm until its place is taken.
func TestLeftBehind(t *testing.T) {
	s, _, w, e, _ := calmPlace(t, "writer")
	ss := s.ledger.sessions("writer")
	e.seen.Store(5)
	e.intent.Store(7)
	w.step, w.empty = crash.PublishEnded, true // it had published one more at least
	ss.died(w)
	for seen, missing := range map[uint64]bool{5: true, 6: false} {
		e.seen.Store(seen)
		if got, _ := s.unseen(ss, nil); (got != "") != missing {
			t.Errorf("%d of 6 are seen: %q", seen, got)
		}
	}
}
