package doorbell

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// hook is a member that does something while it is looked at.
type hook struct{ look func() }

func (h *hook) Look() (bool, error) { h.look(); return false, nil }
func (h *hook) Join(bool)           {}

// What comes for a member that was looked at already is found by trywait's second look.
func TestTryWaitLooksAgain(t *testing.T) {
	d, _ := tallies(t, 2)
	s := d.NewSet()
	defer s.Close()
	once := true
	s.Add(0, &hook{func() {}})
	s.Add(1, &hook{func() {
		if once {
			d.Consider(0)
		}
		once = false
	}})
	if ready, err := s.TryWait(); !ready || err != nil {
		t.Error("says that nothing came: ", ready, err)
	}
	waitIdle(t, s)
}

// What comes between the last event and the reset of the channel's descriptor shows in it.
func TestChannelLooksAgain(t *testing.T) {
	const settle = 20 * time.Millisecond
	d := newDomain(t, 1, 1, readerOptions{})
	watchdog(t, d.String)
	c := d.NewChannel()
	defer c.Close()
	c.Add(0, d.r[0].Bell)
	ep := userEpoll(t, must(c.Face()), unix.EPOLLET)
	c.Inject(0)
	if !wakes(t, ep, 10_000) {
		t.Fatal("not readable")
	}
	c.lowers.Lock() // the get takes its event, and comes as far as the reset
	done := make(chan error)
	go func() {
		_, _, err := c.TryGet()
		done <- err
	}()
	time.Sleep(settle)
	c.Inject(0)
	c.lowers.Unlock()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if !wakes(t, ep, 10_000) {
		t.Error("the descriptor forgets an event")
	}
}

// A set sleeps only if nothing is marked for its members, the keeper only if nothing is for those
// who have a descriptor.
func TestDomainsSecondLook(t *testing.T) {
	d, ms := tallies(t, 3)
	s, c, plain := d.NewSet(), d.NewChannel(), d.NewSet()
	for bit, m := range ms {
		plain.Add(bit, m)
	}
	s.Add(0, ms[0])
	for _, x := range []*Set{s, plain} {
		if got, err := x.Poll(nil); len(got) > 0 || err != nil {
			t.Fatal(got, err)
		}
	}
	face := newFace(t, -1)
	s.desc, c.desc = face, face // without a keeper, which would take the marks
	c.mask.set(2)
	for bit, want := range []bool{true, false, true} {
		ms[bit].add()
		ms[bit].read() // what counts are marks
		if d.busy(nil) != want {
			t.Errorf("bit %d: the keeper's second look says %v", bit, !want)
		}
		if !d.busy(&plain.watcher) || d.busy(&s.watcher) != (bit == 0) {
			t.Errorf("bit %d: a set's second look is wrong", bit)
		}
		d.take()
		for _, x := range []*Set{s, plain} {
			if _, err := x.Poll(nil); err != nil {
				t.Error(err)
			}
		}
		d.Consider(bit) // on the list, and no mark
		if !d.busy(&plain.watcher) {
			t.Errorf("bit %d: a set's second look overlooks its list", bit)
		}
		if _, err := plain.Poll(nil); err != nil {
			t.Error(err)
		}
		if _, err := s.Poll(nil); err != nil {
			t.Error(err)
		}
	}
	s.desc, c.desc = nil, nil
}
