package device

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/place"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// linked returns a session of an endpoint, and the server's end of its connection.
func linked(t *testing.T) (*session, *net.UnixConn) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	at := &net.UnixAddr{Name: path, Net: "unixpacket"}
	l := shmtest.Have(net.ListenUnix("unixpacket", at)).In(t)
	c := shmtest.Have(net.DialUnix("unixpacket", nil, at)).In(t)
	return newSession(c), shmtest.Have(l.AcceptUnix()).In(t)
}

// TestDropWhileSwitching: a port that is dropped while the endpoint talks to the next server, which
// was asked for it already, is not taken there.
func TestDropWhileSwitching(t *testing.T) {
	t.Parallel()
	e := &Endpoint{ports: []uint16{5000, 5001}}
	s, _ := linked(t)
	s.ports = e.takenPorts()
	e.forgetPort(5001)
	if err := e.switchTo(s); !errors.Is(err, ErrBusy) || e.sess != nil {
		t.Errorf("%v, %v", err, e.sess)
	}
	s, _ = linked(t)
	s.ports = e.takenPorts()
	if err := e.switchTo(s); err != nil || e.sess != s {
		t.Error(err)
	}
}

// TestDropAfterSwitch: a port is given back to the server that has it, also if that has come while
// the one before was to be asked.
func TestDropAfterSwitch(t *testing.T) {
	t.Parallel()
	e := &Endpoint{ports: []uint16{5000, 5001}, ctx: t.Context()}
	former, server := linked(t)
	must(t, errors.Join(server.Close(), former.wire.Conn.Close()))
	s, server := linked(t)
	s.ports = e.takenPorts()
	must(t, e.switchTo(s))
	listened, asked := make(chan error, 1), make(chan error, 1)
	go func() { listened <- e.listen(s) }()
	go func() { asked <- e.question(former, stepDrop, 5001) }()
	soon, end := context.WithTimeout(t.Context(), 10*time.Second)
	defer end()
	w := meet(soon, server)
	h, err := w.next()
	if err != nil || h.step != stepDrop || !slices.Equal(h.ports, []uint16{5001}) {
		t.Errorf("%+v, %v", h, err)
	}
	must(t, errors.Join(w.send(hello{step: stepDone}), <-asked, server.Close()))
	if got := e.takenPorts(); !slices.Equal(got, []uint16{5000}) {
		t.Errorf("%v", got)
	}
	<-listened
}

// TestTakenBeforeTold: a port that the server gave is asked for at the next one, also if this one
// dies before whoever asked has heard of it.
func TestTakenBeforeTold(t *testing.T) {
	t.Parallel()
	e := &Endpoint{ports: []uint16{5000}, ctx: t.Context()}
	s, server := linked(t)
	asked, listened := make(chan error, 1), make(chan error, 1)
	go func() { listened <- e.listen(s) }()
	go func() { asked <- e.question(s, stepTake, 5001) }()
	w := meet(t.Context(), server)
	h, err := w.next()
	if err != nil || h.step != stepTake || !slices.Equal(h.ports, []uint16{5001}) {
		t.Fatal(h, err)
	}
	must(t, errors.Join(w.send(hello{step: stepDone}), server.Close()))
	select { // from here on the next server may be talked to
	case <-listened:
	case <-time.After(time.Minute):
		t.Fatal("the end was not noticed")
	}
	if got := e.takenPorts(); !slices.Equal(got, []uint16{5000, 5001}) {
		t.Errorf("%v", got)
	}
	must(t, <-asked)
	// A no takes nothing, nor does it leave the question open.
	s, server = linked(t)
	go func() { listened <- e.listen(s) }()
	go func() { asked <- e.question(s, stepTake, 5002) }()
	w = meet(t.Context(), server)
	if _, err := w.next(); err != nil {
		t.Fatal(err)
	}
	no := refusal(stepDone, ErrPortTaken)
	must(t, w.send(no))
	if err := <-asked; !errors.Is(err, ErrPortTaken) {
		t.Error(err)
	}
	_ = server.Close()
	<-listened
	if got := e.takenPorts(); !slices.Equal(got, []uint16{5000, 5001}) || s.wanted != 0 {
		t.Errorf("%v, %d", got, s.wanted)
	}
}

// TestForsaken: a port that is granted when whoever asked for it has gone is given back, before
// anybody can ask for something else.
func TestForsaken(t *testing.T) {
	t.Parallel()
	e := &Endpoint{ctx: t.Context()}
	s, server := linked(t)
	e.sess = s
	asked := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { asked <- e.Take(ctx, 5001) }()
	soon, end := context.WithTimeout(t.Context(), time.Minute)
	defer end()
	w := meet(soon, server)
	_, err := w.next()
	cancel()
	if err := <-asked; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	must(t, errors.Join(err, w.send(hello{step: stepDone})))
	h, err := s.wire.next()
	if err != nil || !e.answered(s, &h) {
		t.Fatal(h, err)
	}
	e.mu.Lock() // without it nothing is given back
	s.answers <- h
	for end := time.Now().Add(20 * time.Millisecond); time.Now().Before(end); runtime.Gosched() {
		if s.asking.TryLock() {
			t.Error("somebody else can ask before")
			s.asking.Unlock()
			break
		}
	}
	e.mu.Unlock()
	if h, err = w.next(); err != nil || h.step != stepDrop || !slices.Equal(h.ports, []uint16{5001}) {
		t.Errorf("%+v, %v", h, err)
	}
	if got := e.takenPorts(); len(got) != 0 {
		t.Errorf("%v", got)
	}
	must(t, server.Close())
	_ = e.listen(s)
}

// TestFrozenAsking: an answer that lies unread for however long, since its reader was stopped, is
// the answer to the question all the same. An answer to nothing is none.
func TestFrozenAsking(t *testing.T) {
	t.Parallel()
	e := &Endpoint{ctx: t.Context()}
	s, server := linked(t)
	must(t, e.pose(s, stepTake, 5007))
	listened := make(chan error, 1)
	go func() { listened <- e.listen(s) }()
	w := meet(t.Context(), server)
	_, err := w.next()
	must(t, errors.Join(err, w.send(hello{step: stepDone})))
	select {
	case err := <-listened:
		t.Fatalf("hung up: %v", err)
	case <-time.After(1300 * time.Millisecond): // longer than a side waits before it looks again
	}
	must(t, e.awaitAnswer(s))
	must(t, w.send(hello{step: stepDone}))
	if err := <-listened; !errors.Is(err, ErrProtocol) {
		t.Errorf("an answer to nothing: %v", err)
	}
}

// TestLateDrop: a port that was dropped by one application and taken by another one stays with the
// later owner, in whichever order the engine learns of it.
func TestLateDrop(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	const port = 5000
	en := &engine{byPort: make([]*app, 1<<16)}
	a, b := &app{owns: map[uint16]bool{}}, &app{owns: map[uint16]bool{}}
	en.assign(a, []uint16{port, port + 1})
	en.assign(b, []uint16{port})
	first := a.owns[port]
	en.assign(a, []uint16{port + 1})
	if first || !b.owns[port] || en.byPort[port] != b || en.byPort[port+1] != a {
		t.Errorf("sends from it: first %t, second %t", first, b.owns[port])
	}
}

// TestRetryBounded: however many sends wait for addresses, one turn tries no more of them than it
// takes commands, all are tried in their turn, and what waits for one address keeps its order.
func TestRetryBounded(t *testing.T) {
	t.Parallel()
	const batch, sends = 32, 4000
	table := &fullTable{places: 1 << 20, asked: map[netip.Addr]int{}, never: true}
	all := newHolders(table)
	all.forgets = nil // every try is a lookup
	en := &engine{s: &Server{c: Config{TxBatch: batch}}, now: 1e9}
	a := &app{account: &account{ways: newWays(all, 1)}, owns: map[uint16]bool{5000: true},
		slot: 64, page: &statusPage{done: make([]atomic.Uint64, 8)}, routes: map[target]*route{}}
	for i := range sends {
		to := netip.AddrPortFrom(numbered(i%1000), 9)
		e := sendCommand(uint64(i), sendFlags, 0, 0, 5000, to)
		a.parked.add(&e, 1e15)
	}
	for round := range 40 {
		before := table.calls
		a.retry(en)
		if n := table.calls - before; n > batch {
			t.Fatalf("round %d: %d tries", round, n)
		}
	}
	if n := len(table.asked); n != 1000 || a.parked.count != sends {
		t.Errorf("%d of 1000 destinations were tried, %d sends wait", n, a.parked.count)
	}
	before := table.calls
	a.retry(en)
	if table.calls != before {
		t.Error("tried again at once")
	}
	last := map[netip.Addr]uint64{}
	for a.parked.count > 0 {
		w := a.parked.turn[int(a.parked.count)%len(a.parked.turn)]
		if c := w.sends[0].e.Context; last[w.to] != 0 && c <= last[w.to] {
			t.Fatalf("%d after %d", c, last[w.to])
		} else if c > 0 {
			last[w.to] = c
		}
		a.parked.pop(w)
	}
	if len(a.parked.ways) != 0 || len(a.parked.turn) != 0 || a.parked.holds(numbered(1)) {
		t.Errorf("%+v", a.parked)
	}
	a.retry(en)
	e := cq.Entry{}
	a.parked.add(&e, 1)
	if a.parked.count != 1 {
		t.Error("not parked")
	}
}

// TestParkedWithoutPort: a send that fails while it waits for an address, as its port is not its
// application's any more, leaves no question that nobody waits for.
func TestParkedWithoutPort(t *testing.T) {
	t.Parallel()
	const sends = 40
	table := &fullTable{places: 1 << 20, asked: map[netip.Addr]int{}, never: true}
	q := shmtest.Got(cq.Create(cq.Unnamed("parked"), cq.Options{Size: 64})).Or(t)
	tx := shmtest.Got(q.Writer()).Or(t)
	must(t, tx.Credits().Add(sends))
	en := &engine{s: &Server{c: Config{TxBatch: sends}}, now: 1e9}
	a := &app{account: &account{ways: newWays(newHolders(table), sends)}, tx: tx,
		owns: map[uint16]bool{5000: true}, slot: 64,
		page: &statusPage{done: make([]atomic.Uint64, 8)}, routes: map[target]*route{}}
	for i := range sends {
		to := netip.AddrPortFrom(numbered(i), 9)
		e := sendCommand(uint64(i), sendFlags, 0, 0, 5000, to)
		if _, state := a.send(en, &e, targetOf(&e)); state != sendParked {
			t.Fatalf("state %d", state)
		}
		a.parked.add(&e, 1e15)
	}
	if n := a.account.ways.asking; n != sends {
		t.Fatalf("%d questions", n)
	}
	delete(a.owns, 5000)
	a.retry(en)
	if n := a.account.ways.asking; n != 0 || a.parked.count != 0 {
		t.Errorf("%d questions for %d sends", n, a.parked.count)
	}
	must(t, errors.Join(tx.Close(), q.Close()))
}

// TestWindow: between the word that says how a send ended and the completion itself the server can
// die. Until the completion is published the send has not ended, and its slot is not free.
func TestWindow(t *testing.T) {
	t.Parallel()
	s, server := linked(t)
	q := shmtest.Have(newCompletions(cq.Options{}, nil)).In(t)
	accepted := make(chan error, 1)
	go func() { accepted <- q.Accept(context.Background(), s.wire.Conn) }()
	w := shmtest.Have(attachQueue(context.Background(), server, nil, maxLaneBytes)).In(t)
	must(t, <-accepted)
	page := shmtest.Got(newPage(1, 2, 1)).Or(t)
	defer func() { must(t, page.close()) }()

	e := &Endpoint{q: q, slots: make([]sendSlot, 2)}
	lane := shmtest.Got(q.Lane(w.Lane(), shm.UUID{})).Or(t)
	s = &session{page: page, txLane: w.Lane(), txObject: lane.Object}
	for range 3 {
		i := e.freeSlot(s)
		if i != 0 {
			t.Fatalf("slot %d is free", i)
		}
		e.slots[i] = sendSlot{busy: true, before: page.done[i].Load()}
		if e.ended(s, i) {
			t.Error("ended before it began")
		}
		page.done[i].Store(w.Next() + 1)
		if e.ended(s, i) || e.freeSlot(s) == i {
			t.Error("ended without a completion")
		}
		must(t, w.Post(&cq.Entry{Context: 1}))
		if !e.ended(s, i) || e.freeSlot(s) != i {
			t.Error("did not end")
		}
	}
}

// TestShownBeforeTold: an application that sees on its page what it did counted finds it in Stats
// of the server too.
func TestShownBeforeTold(t *testing.T) {
	t.Parallel()
	page := shmtest.Got(newPage(1, 1, 1)).Or(t)
	a := &app{peer: &place.Peer{}, pool: newPool(1), page: page}
	a.publish()
	const updates = 20000
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range updates {
			a.received++
			a.dirty = true
			a.publish()
		}
	}()
	for told := uint64(0); told < updates; {
		told = countsOf(page).Received
		if shown := a.shown.Load().Received; shown < told {
			t.Errorf("%d are told, %d shown", told, shown)
			break
		}
	}
	<-done
	must(t, page.close())
}

// TestMaxPayload: what the server says on the page makes datagrams shorter than was granted, and
// never longer.
func TestMaxPayload(t *testing.T) {
	t.Parallel()
	page := shmtest.Got(newPage(1, 1, 1)).Or(t)
	s := &session{page: page, grant: hello{maxPayload: 100}}
	for told, want := range map[uint64]int{0: 100, 60: 60, 101: 100, 1 << 63: 100} {
		page.counts[kind.PageMaxPayload].Store(told)
		if got := s.maxPayload(); got != want {
			t.Errorf("told %d: %d", told, got)
		}
	}
	must(t, page.close())
}

// TestSlowIsTold: an application whose hello took too long is told so, also if the rendezvous that
// ran out of time has made the connection look as if the application had hung up.
func TestSlowIsTold(t *testing.T) {
	t.Parallel()
	for _, why := range []error{cq.ErrPeerGone, context.DeadlineExceeded} {
		app, conn := linked(t)
		must(t, conn.CloseRead()) // as a rendezvous does that must not go on
		new(Server).refuse(conn, fmt.Errorf("%w: %w", ErrSlow, why))
		err := lastWord(t.Context(), app.wire.Conn, cq.ErrPeerGone)
		if !errors.Is(err, ErrSlow) {
			t.Errorf("%v: %v", why, err)
		}
		must(t, app.wire.Conn.Close())
	}
}
