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

	"github.com/shmring/shmring/cmd/shmctl/internal/wire"
	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/fabric"
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
