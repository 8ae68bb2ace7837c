package torture

import (
	"path/filepath"
	"testing"
	"time"
)

// TestUnnoticed: a death that is not told is found when those who were to tell it could run for as
// long as that may take, however long nobody could.
func TestUnnoticed(t *testing.T) {
	l, err := makeLedger(filepath.Join(t.TempDir(), ledgerFile))
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	roles := []*role{{name: "reader", mourns: true}, {name: "writer"}}
	s := &supervisor{roles: roles, report: newReport(Options{}, roles), ledger: l,
		found: map[string]Found{}, notes: newNotices(),
		mourners: mourners{seen: map[int]time.Duration{}},
		procs: []*proc{{role: roles[0], place: 0, done: make(chan struct{})},
			{role: roles[0], place: 1, done: make(chan struct{})},
			{role: roles[1], place: 2, done: make(chan struct{})}}}
	key := noticeKey{process{77, 1000}, noticeWriter}
	s.notes.due[key] = &duty{death: death{role: "writer", atNs: 1}}
	at := func(own, first, second time.Duration) uint64 {
		l.word(wordLived).Store(uint64(first))
		l.word(wordLived + 1).Store(uint64(second))
		s.overdue(s.mourners.look(s, own))
		return s.found["writer"].Unnoticed
	}
	const long = 2 * noticeLatest
	for _, c := range []struct{ own, first, second time.Duration }{
		{1, 1, 1},                    // the death is due from here
		{long, 1, long},              // the first could not run,
		{2 * long, 0, long},          // the second could not, and the first begins again,
		{2*long + 1, long, long + 1}, // nor could this process
		{3 * long, noticeLatest / 2, 2 * long},
	} {
		if n := at(c.own, c.first, c.second); n != 0 {
			t.Fatalf("%+v: %d were late", c, n)
		}
	}
	if n := at(4*long, long, 3*long); n != 1 || len(s.notes.due) != 0 {
		t.Errorf("%d were late, %d are due", n, len(s.notes.due))
	}
}

// TestLifetime goes on, and by little at a time.
func TestLifetime(t *testing.T) {
	real := time.Now()
	begin := lifetime()
	for lifetime()-begin < 5*livedMost {
		nap(time.Millisecond)
	}
	is := lifetime() - begin
	if passed := time.Since(real); is > passed+livedMost { // one look may have begun before
		t.Errorf("%v passed, and it is %v", passed, is)
	}
}
