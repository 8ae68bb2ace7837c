package torture

import (
	"errors"
	"maps"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/shmring/shmring/internal/stage"
	"github.com/shmring/shmring/shm"
)

// TestNumbersComeRound: what is told late of one process is not taken for the next that has its
// number.
func TestNumbersComeRound(t *testing.T) {
	first, next := process{77, 1000}, process{77, 2000}
	n, by := newNotices(), process{5, 50}
	n.born(first, "first")
	n.came(by, event{Pid: 77, Start: 1000, What: noticeWriter, AtNs: 15}) // before we know of it
	n.dead(first, death{"writer", 10})
	n.born(next, "next")
	n.came(by, event{Pid: 77, Start: 1000, What: noticeWriter, AtNs: 16})
	if len(n.early) != 0 || len(n.ns[noticeWriter]) != 1 || n.ns[noticeWriter][0] != 5 {
		t.Errorf("%+v", n)
	}
	n.came(by, event{Pid: 77, What: noticeWriter, AtNs: 30}) // whoever has the number: that one lives
	n.came(by, event{Pid: 77, Start: 2000, What: noticeReader, AtNs: 30})
	if len(n.early) != 2 {
		t.Errorf("%+v", n)
	}
	n.dead(next, death{"writer", 20})
	if len(n.early) != 0 || len(n.ns[noticeWriter]) != 2 || n.ns[noticeReader][0] != 10 {
		t.Errorf("%+v", n)
	}
}

// TestStartTicks: the supervisor and the library mean the same by when a process began.
func TestStartTicks(t *testing.T) {
	state, got := stat(os.Getpid())
	if want := shm.Self().StartTicks; got != want || got == 0 || state == "" {
		t.Errorf("%d, want %d; state %q", got, want, state)
	}
	if state, got := stat(1 << 30); got != 0 || state != "" || lives(1<<30) {
		t.Errorf("of nobody: %d, state %q", got, state)
	}
}

// survivors is a supervisor of processes that are only said to be there: two that survive and one
// that died at 10.
type survivors struct {
	*supervisor
	first, second, dead *proc
	end                 map[*proc]func()
}

func newSurvivors(t *testing.T) survivors {
	l := ledgerOf(t)
	roles := []*role{{name: "reader"},
		{name: "writer", tells: map[string]string{"reader": noticeWriter}}}
	end := map[*proc]func(){}
	place := func(r *role, at int) *proc {
		p := &proc{role: r, place: at, start: uint64(1000 + at)}
		p.Process, end[p] = stage.Pretend(70 + at)
		return p
	}
	s := &supervisor{roles: roles, report: newReport(Options{}, roles), ledger: l,
		found: map[string]Found{}, notes: newNotices()}
	m := survivors{s, place(roles[0], 0), place(roles[0], 1), place(roles[1], 2), end}
	for _, p := range []*proc{m.first, m.second, m.dead} {
		s.procs = append(s.procs, p)
		l.word(wordHas + p.place).Store(theOnly)
		s.notes.born(p.process(), p.role.name)
	}
	m.end[m.dead]()
	s.notes.dead(m.dead.process(), death{"writer", 10})
	return m
}

// at looks when this process and the survivors have lived so long, and returns who was late so far.
func (m survivors) at(own, first, second time.Duration) uint64 {
	m.ledger.word(wordLived).Store(uint64(first))
	m.ledger.word(wordLived + 1).Store(uint64(second))
	m.overdue(own)
	return m.found["writer"].Unnoticed
}

func (m survivors) told(by *proc, atNs int64) {
	m.notes.came(by.process(), event{Role: by.role.name, Pid: m.dead.PID(), Start: m.dead.start,
		What: noticeWriter, AtNs: atNs})
}

const long = 2 * noticeLatest

// TestUnnoticed: a death that is not told is found when the one that was to tell it could run for
// as long as that may take, however long it could not.
func TestUnnoticed(t *testing.T) {
	m := newSurvivors(t)
	m.expect(m.dead, m.first, noticeWriter, nil)
	for _, c := range []struct{ own, first, second time.Duration }{
		{1, 1, 1},                             // the death is due from here
		{long, 1, long},                       // the survivor could not run,
		{long + 1, long, long},                // nor could this process
		{2 * long, long + 1, long},            //
		{3 * long, long + noticeLatest/2, 99}, // not long enough
	} {
		if n := m.at(c.own, c.first, c.second); n != 0 {
			t.Fatalf("%+v: %d were late", c, n)
		}
	}
	if n := m.at(4*long, 3*long, 99); n != 1 || len(m.notes.due) != 0 {
		t.Errorf("%d were late, %d are due", n, len(m.notes.due))
	}
}

// TestUnnoticedOften: how often it is looked does not matter, though lives go on in steps.
func TestUnnoticedOften(t *testing.T) {
	m := newSurvivors(t)
	m.expect(m.dead, m.first, noticeWriter, nil)
	var own, first time.Duration
	for own < 2*noticeLatest && m.at(own, first, 0) == 0 {
		own += stage.LivedEvery
		if m.at(own, first, 0) == 0 {
			first += stage.LivedEvery
		}
	}
	if own < noticeLatest || own > noticeLatest*5/4 {
		t.Errorf("late after %v, want %v", own, noticeLatest)
	}
}

// TestEverySurvivor: that one knows of a death does not help another one, and both are timed.
func TestEverySurvivor(t *testing.T) {
	m := newSurvivors(t)
	m.expect(m.dead, m.first, noticeWriter, nil)
	m.expect(m.dead, m.second, noticeWriter, nil)
	m.at(1, 1, 1)
	if m.at(noticeUsual, noticeUsual, noticeUsual); m.late(m.first) || m.late(m.second) {
		t.Error("somebody is late already")
	}
	m.told(m.first, 15)
	m.told(m.first, 16) // again
	if n := m.at(long, long, noticeLatest/2); n != 0 || len(m.notes.due) != 1 {
		t.Fatalf("%d were late, %d are due", n, len(m.notes.due))
	}
	if m.late(m.first) || !m.late(m.second) {
		t.Errorf("late are the first: %v, the second: %v", m.late(m.first), m.late(m.second))
	}
	if n := m.at(2*long, 2*long, long); n != 1 || len(m.notes.due) != 0 {
		t.Errorf("%d were late, %d are due", n, len(m.notes.due))
	}
	m.told(m.second, 40)
	if ns := m.notes.ns[noticeWriter]; !slices.Equal(ns, []int64{5, 30}) {
		t.Errorf("times %v", ns)
	}
	m.expect(m.dead, m.second, noticeWriter, nil) // it has told it
	if len(m.notes.due) != 0 {
		t.Errorf("%d are due", len(m.notes.due))
	}
}

// TestNoticesApart: those of survivors that were stopped, or came later, are not mixed with others.
func TestNoticesApart(t *testing.T) {
	m := newSurvivors(t)
	resumed := m.notes.stopped(m.second.process(), 8)
	m.told(m.first, 15)
	resumed(20)
	m.told(m.second, 25)
	m.notes.stopped(m.first.process(), 30)(31) // before the next death
	other := process{99, 9}
	m.notes.dead(other, death{"writer", 40})
	late := event{Pid: other.pid, Start: other.start, What: noticeWriter, AtNs: 50}
	m.notes.came(m.first.process(), late)
	late.SinceNs = 45
	m.notes.came(m.second.process(), late)
	want := map[string][]int64{noticeWriter: {5, 10}, noticeStopped: {15}, noticeLate: {10}}
	if !maps.EqualFunc(m.notes.ns, want, slices.Equal) {
		t.Errorf("%v, want %v", m.notes.ns, want)
	}
	n := Noticed{}
	n.Add(&Noticed{AllNs: m.notes.ns})
	if n.NoticeNs.Count != 2 || n.Notices[noticeStopped].Count != 1 {
		t.Errorf("%+v", n)
	}
}

// TestWhoOwes: of a role each one that was bound when the other one died, as long as that lasts.
func TestWhoOwes(t *testing.T) {
	for name, c := range map[string]struct {
		bound uint64 // of the survivor; the death is at 10
		then  func(m survivors)
		due   int
		want  Duties
	}{
		"never bound":     {0, nil, 0, Duties{}},
		"bound after":     {11, nil, 0, Duties{}},
		"bound meanwhile": {10, nil, 0, Duties{}},
		"bound before":    {9, nil, 1, Duties{Demanded: 1}},
		"has another one": {9, func(m survivors) { m.ledger.word(wordHas).Store(7) }, 0, Duties{}},
		"went on to another one": {9, func(m survivors) {
			m.ledger.word(wordHas).Store(7)
			m.ledger.word(wordHad).Store(theOnly)
		}, 1, Duties{Demanded: 1}},
		"of one that had nothing": {9, func(m survivors) {
			m.ledger.word(wordHas).Store(0)
			m.ledger.word(wordHas + m.dead.place).Store(0)
		}, 0, Duties{}},
		"killed as well": {9, func(m survivors) { m.end[m.first]() }, 0, Duties{}},
		"nobody there":   {9, func(m survivors) { m.first.empty = true }, 0, Duties{}},
		"has told it": {9, func(m survivors) { m.told(m.first, 20) }, 0,
			Duties{Demanded: 1, Told: 1}},
		"told to another": {9, func(m survivors) { m.told(m.second, 20) }, 1,
			Duties{Demanded: 1}},
		"told as a number": {9, func(m survivors) {
			m.notes.came(m.first.process(), event{Pid: 1, Start: 1, What: noticeWriter, AtNs: 10, More: 1})
		}, 0, Duties{Demanded: 1, Excused: 1}},
		"a number before it": {9, func(m survivors) {
			m.notes.came(m.first.process(), event{Pid: 1, Start: 1, What: noticeWriter, AtNs: 9, More: 1})
		}, 1, Duties{Demanded: 1}},
		"a number of others": {9, func(m survivors) {
			m.notes.came(m.first.process(), event{Pid: 1, Start: 1, What: noticeReader, AtNs: 10, More: 1})
		}, 1, Duties{Demanded: 1}},
		"a number by another": {9, func(m survivors) {
			m.notes.came(m.second.process(), event{Pid: 1, Start: 1, What: noticeWriter, AtNs: 10, More: 1})
		}, 1, Duties{Demanded: 1}},
		"not killed": {9, func(m survivors) { delete(m.notes.deaths, m.dead.process()) }, 0, Duties{}},
	} {
		t.Run(name, func(t *testing.T) {
			m := newSurvivors(t)
			m.ledger.word(wordBound).Store(c.bound)
			m.ledger.word(wordDeath + m.dead.place).Store(10)
			if c.then != nil {
				c.then(m)
			}
			m.demand(m.dead)
			if len(m.notes.due) != c.due || m.notes.duties[noticeWriter] != c.want {
				t.Errorf("%d are due, %+v; want %d, %+v", len(m.notes.due),
					m.notes.duties[noticeWriter], c.due, c.want)
			}
		})
	}
}

// TestDiedFirst: one that is killed when it was dead already died when it did, so nobody owes it
// who came in between.
func TestDiedFirst(t *testing.T) {
	m := newSurvivors(t)
	m.noteDeath(m.dead)
	if at := m.diedAt(m.dead); at == 0 {
		t.Error("not noted")
	}
	m.ledger.word(wordDeath + m.dead.place).Store(10)
	m.ledger.word(wordBound).Store(11)
	m.noteDeath(m.dead)
	if m.demand(m.dead); m.diedAt(m.dead) != 10 || len(m.notes.due) != 0 {
		t.Errorf("died at %d, %d are due", m.diedAt(m.dead), len(m.notes.due))
	}
}

// TestHasty: who is told dead before it died lived when that was said, though it died later.
func TestHasty(t *testing.T) {
	for at, want := range map[int64]uint64{9: 1, 10: 0, 11: 0} {
		m := newSurvivors(t)
		m.told(m.first, at)
		if m.unfounded(); m.found["reader"].Usurped != want {
			t.Errorf("told at %d, it died at 10: %d found", at, m.found["reader"].Usurped)
		}
	}
}

// TestEndCountedOnce: what is done about a death may wait for processes that die, which may make
// somebody wait for the first one's role: its end is not counted again, and its place not filled
// twice, or the first of the two would live on unseen.
func TestEndCountedOnce(t *testing.T) {
	m := newSurvivors(t)
	counted := map[*proc]int{}
	for _, r := range m.roles {
		r.died = func(s *supervisor, p *proc) error {
			if counted[p]++; counted[p] > 1 {
				return errors.New("counted twice")
			}
			return s.reviveAll()
		}
		r.settled = func(*supervisor, *proc) bool { return false }
	}
	for _, p := range m.procs {
		p.shot = true
		var err error
		if p.Process, err = (stage.Spec{Program: []string{"true"}}).Start(); err != nil {
			t.Fatal(err)
		}
		p.Wait(time.Minute)
	}
	if err := m.reviveAll(); err != nil || len(counted) != len(m.procs) {
		t.Errorf("%d of %d are counted, %v", len(counted), len(m.procs), err)
	}
}

// TestOwesUntil: a duty ends as it should, is counted so, and only what is left of it is found.
func TestOwesUntil(t *testing.T) {
	for name, c := range map[string]struct {
		then func(m survivors)
		late uint64
		want Duties
	}{
		"never told": {func(survivors) {}, 1, Duties{Demanded: 1}},
		"told":       {func(m survivors) { m.told(m.first, 20) }, 0, Duties{Demanded: 1, Told: 1}},
		"told again": {func(m survivors) { m.told(m.first, 20); m.told(m.first, 21) }, 0,
			Duties{Demanded: 1, Told: 1}},
		"told by another": {func(m survivors) { m.told(m.second, 20) }, 1, Duties{Demanded: 1}},
		"told in another way": {func(m survivors) {
			m.notes.came(m.first.process(), event{Pid: m.dead.PID(), Start: m.dead.start,
				What: noticeReader, AtNs: 20})
		}, 1, Duties{Demanded: 1}},
		"told of one that had the number": {func(m survivors) {
			m.notes.came(m.first.process(), event{Pid: m.dead.PID(), Start: m.dead.start - 1,
				What: noticeWriter, AtNs: 20})
		}, 1, Duties{Demanded: 1}},
		"told as a number": {func(m survivors) {
			m.notes.came(m.first.process(), event{Pid: 1, Start: 1, What: noticeWriter, AtNs: 10, More: 1})
		}, 0, Duties{Demanded: 1, Excused: 1}},
		"unbound": {func(m survivors) { m.ledger.word(wordBound).Store(0) }, 0,
			Duties{Demanded: 1, Excused: 1}},
		"bound again": {func(m survivors) { m.ledger.word(wordBound).Store(30) }, 0,
			Duties{Demanded: 1, Excused: 1}},
		"dead": {func(m survivors) { m.end[m.first]() }, 0, Duties{Demanded: 1, Excused: 1}},
		"nobody there": {func(m survivors) { m.first.empty = true }, 0,
			Duties{Demanded: 1, Excused: 1}},
		"succeeded": {func(m survivors) { m.first.start++ }, 0, Duties{Demanded: 1, Excused: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			m := newSurvivors(t)
			m.ledger.word(wordBound).Store(9)
			m.ledger.word(wordDeath + m.dead.place).Store(10)
			m.demand(m.dead)
			m.at(1, 1, 1)
			c.then(m)
			if n := m.at(long, long, long); n != c.late || len(m.notes.due) != 0 ||
				m.notes.duties[noticeWriter] != c.want {
				t.Errorf("%d were late, %d are due, %+v; want %d, none, %+v", n, len(m.notes.due),
					m.notes.duties[noticeWriter], c.late, c.want)
			}
		})
	}
}

// TestDutiesAddUp: those of several runs, and what is open at the end of one.
func TestDutiesAddUp(t *testing.T) {
	m := newSurvivors(t)
	m.expect(m.dead, m.first, noticeWriter, nil)
	m.expect(m.dead, m.second, noticeWriter, nil)
	m.told(m.first, 20)
	m.close()
	var n Noticed
	n.Add(&m.report.Noticed)
	n.Add(&Noticed{Duties: map[string]Duties{noticeReader: {Demanded: 4, Told: 1, Excused: 2}}})
	if all, want := n.AllDuties(), (Duties{6, 2, 2, 1}); all != want {
		t.Errorf("%+v, want %+v", all, want)
	}
}
