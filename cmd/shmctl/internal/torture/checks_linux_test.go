package torture

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"math/rand/v2"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/cmd/shmctl/internal/wire"
	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/fabric"
	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/stage"
	"github.com/shmring/shmring/shm"
)

// heard is a process of a role that plays in a test, and what it tells.
func heard(t *testing.T, role string) (c *child, told func() []string) {
	var out bytes.Buffer
	l := ledgerOf(t)
	c = &child{Child: stage.NewChild(role, "", &out), role: roleOf(role), ledger: l,
		words: l.region(role), still: l.still(role), pid: os.Getpid(), rnd: rand.New(rand.NewPCG(1, 1))}
	return c, func() (kinds []string) {
		for line := range bytes.Lines(out.Bytes()) {
			var e event
			shmtest.Must(t, json.Unmarshal(line, &e))
			kinds = append(kinds, e.Kind)
		}
		out.Reset()
		return kinds
	}
}

// TestNumbers: each entry is held against what its writer and its readers noted.
func TestNumbers(t *testing.T) {
	for name, c := range map[string]struct {
		number uint64
		marked bool
		want   []string
	}{
		"next":            {3, false, nil},
		"again, marked":   {2, true, nil},
		"again":           {2, false, []string{kindDuplicate}},
		"too far":         {5, false, []string{kindLost}},
		"never committed": {6, false, []string{kindUnpublished}},
	} {
		p, told := heard(t, "reader")
		j := p.checks()
		s := j.of.at(1, 4)
		s.intent.Store(5)
		s.seen.Store(2)
		j.number(sessionName(1, 4), c.number, c.marked)
		if got := told(); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v", name, got)
		}
		if again := j.again.Load() == 1; again != (c.marked && c.number == 2) {
			t.Errorf("%s: counted as again: %v", name, again)
		}
	}
	p, told := heard(t, "reader")
	j := p.checks()
	j.number(sessionName(writers, 1), 1, false)
	j.of.at(1, 1).intent.Store(1)
	j.entry(&cq.Entry{Data: sessionName(1, 1), Context: 1})
	if got := told(); !slices.Equal(got, []string{kindUnpublished, kindUnpublished}) {
		t.Errorf("of nobody, and without a checksum: %v", got)
	}
}

// TestSessionsAddUp: what the ledger says at the end of a session of which 5 are published, of a
// writer of one user and of one of another, whose reader may be gone.
func TestSessionsAddUp(t *testing.T) {
	for name, c := range map[string]struct {
		writers      string
		seen, reader uint64
		exact        bool
		gone         uint64
		found        Found
	}{
		"all":                  {"writer", 5, 0, true, 0, Found{}},
		"in doubt":             {"writer", 7, 0, false, 0, Found{}},
		"never published":      {"writer", 6, 0, true, 0, Found{Unpublished: 1}},
		"lost":                 {"writer", 3, 0, false, 0, Found{Lost: 2}},
		"lost between users":   {"others-writer", 3, 9, false, 0, Found{Lost: 2}},
		"gone with its reader": {"others-writer", 3, 8, false, 2, Found{}},
	} {
		s, _, _, e, _ := calmPlace(t, c.writers)
		intent := uint64(7)
		if c.exact {
			intent = 5
		}
		e.intent.Store(intent)
		e.seen.Store(c.seen)
		e.reader.Store(c.reader)
		checkSessions(s, roleOf(c.writers))
		want := Tally{Published: 5, InDoubt: intent - 5, Read: c.seen, Gone: c.gone, Found: c.found}
		r := RoleReport{Tally: Tally{Found: s.found[c.writers]}, Counts: map[string]uint64{}}
		if sumSessions(s, roleOf(c.writers), &r); r.Tally != want || r.Counts["sessions"] != 4 {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

// TestLastLook: a reader looks once more while something of its own is not seen.
func TestLastLook(t *testing.T) {
	p, _ := heard(t, "others-reader")
	j := p.checks()
	j.mine = 9
	j.of.count(1).Store(4)
	e := j.of.at(1, 4)
	e.published.Store(2)
	for reader, last := range map[uint64]bool{8: true, 9: false} {
		e.reader.Store(reader)
		if got := j.drained(stage.Lifetime()); got != last {
			t.Errorf("with %d of its writer: the last look: %v", reader, got)
		}
	}
	e.seen.Store(2)
	if !j.drained(stage.Lifetime()) {
		t.Error("all is seen, and it looks again")
	}
}

// closing is a thing that counts who destroys it.
type closing struct{ times int }

func (c *closing) Detach() error { return nil }
func (c *closing) Close() error  { c.times++; return nil }

// TestEndIsMadeUp: what one died over who was to destroy it the next one destroys; what is gone is
// no failure.
func TestEndIsMadeUp(t *testing.T) {
	c, _ := heard(t, "reader")
	c.words[heldEnded].Store(1)
	left := &closing{}
	for _, gone := range []error{nil, cq.ErrClosed} {
		if err := c.hold(func(bool) (held, error) { return left, gone }, nil); err != nil {
			t.Error(err)
		}
	}
	if left.times != 1 {
		t.Errorf("it was destroyed %d times", left.times)
	}
}

// TestStockIsTakenAtOnce: who takes the vector over says once of each address what it found. Its
// users may look at any moment, and it may be stopped at any.
func TestStockIsTakenAtOnce(t *testing.T) {
	c, told := heard(t, "vector-owner")
	o := &owning{child: c, v: shmtest.Have(cq.CreateAddresses(cq.Unnamed("stock"),
		cq.AddressOptions{Count: vectorCount})).In(t)}
	for id := range addressIDs {
		shmtest.Must(t, o.one(id))
	}
	before := make([]uint64, addressIDs)
	for id := range before {
		before[id] = o.words[vectorWords+id].Load()
	}
	o.takeStock()
	for id, was := range before {
		if is := o.words[vectorWords+id].Load(); is != was+1<<addrBits {
			t.Errorf("of address %d the word %#x became %#x", id, was, is)
		}
	}
	if got := told(); got != nil {
		t.Errorf("it tells %v", got)
	}
}

// TestPlaces: those who come to a place have generations that rise.
func TestPlaces(t *testing.T) {
	p, told := heard(t, "others-reader")
	p.holds(5)
	p.holds(6)
	if got := told(); got != nil {
		t.Error(got)
	}
	p.holds(6)
	if got := told(); !slices.Equal(got, []string{kindBroken}) {
		t.Errorf("the same again: %v", got)
	}
}

// TestConnectionsHaveReasons: one that ends before its time does so because its place has ended.
func TestConnectionsHaveReasons(t *testing.T) {
	for name, c := range map[string]struct {
		err          error
		lives, other bool
		well, cut    uint64
		want         []string
	}{
		"it went well":        {nil, true, false, 1, 0, nil},
		"it lives":            {syscall.EPIPE, true, false, 0, 0, []string{kindUsurped}},
		"it is dead":          {syscall.EPIPE, false, false, 0, 1, nil},
		"another one listens": {syscall.EPIPE, true, true, 0, 1, nil},
		"not for that":        {syscall.EIO, false, false, 0, 0, []string{kindBroken}},
	} {
		p, told := heard(t, "endpoint")
		talks := p.ledger.talks()
		at := p.askFor(2, endListens)
		if c.other {
			talks.place(2)[endListens].Add(2)
		}
		survives := func(_ int, has func() bool) bool { return c.lives && has() }
		at.became(endEchoed, endReset, survives, c.err, syscall.EPIPE)
		if got := told(); !slices.Equal(got, c.want) || talks[endEchoed].Load() != c.well ||
			talks[endReset].Load() != c.cut {
			t.Errorf("%s: %v, %d well, %d cut", name, got, talks[endEchoed].Load(), talks[endReset].Load())
		}
	}
}

// TestGroupsTellWhatIsMissed: what comes to a member follows on, but for what it is told to have
// missed.
func TestGroupsTellWhatIsMissed(t *testing.T) {
	peer := kind.FabricOutboxID(77)
	d := shmtest.Got(shm.OpenDir("")).Or(t)
	defer d.Close()
	for name, c := range map[string]struct {
		group, missed, number uint64
		want                  []string
	}{
		"the next":          {1, 0, 4, nil},
		"again":             {1, 0, 3, []string{kindDuplicate}},
		"some missed":       {1, 2, 6, nil},
		"more than is told": {1, 1, 6, []string{kindLost}},
		"where all wait":    {0, 2, 6, []string{kindLost}},
		"to no group":       {2, 0, 4, []string{kindUnpublished}},
	} {
		p, told := heard(t, "endpoint")
		o := shmtest.Got(wire.OpenEndpoint(d, "member", 16, fabric.Options{Peers: 2})).Or(t)
		e := &grouper{child: p, Endpoint: o, last: map[groupLine]uint64{{peer, c.group}: 3},
			miss: map[uint64]uint64{}}
		if c.missed > 0 {
			from := o.Address()
			from.Outbox = peer
			e.missed(&cq.ErrorEntry{Err: cq.EOverrun, Data: c.missed, ErrData: from.Append(nil)})
		}
		text := binary.LittleEndian.AppendUint64(nil, peer)
		text = binary.LittleEndian.AppendUint64(text, c.group)
		copy(e.bufs[0][:], binary.LittleEndian.AppendUint64(text, c.number))
		e.came(&cq.ErrorEntry{Len: groupBytes, Flags: cq.FlagRecv | cq.FlagMsg | cq.FlagMulticast})
		if got := told(); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v", name, got)
		}
		shmtest.Must(t, o.Close())
	}
}

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
