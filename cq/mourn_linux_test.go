package cq

import (
	"syscall"
	"testing"

	"github.com/shmring/shmring/shm"
)

// starvedHome is a queue's directory in a process that has no descriptor left.
type starvedHome struct {
	home
	starved bool
}

func (h *starvedHome) openLane(bit int) (*shm.Object, error) {
	if h.starved {
		return nil, syscall.EMFILE
	}
	return h.home.openLane(bit)
}

// TestMournStarved: lanes that could not be opened for want of descriptors are looked at as soon as
// there are some, though no lane comes or goes meanwhile.
func TestMournStarved(t *testing.T) {
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	d := dirOfItsOwn(t, "starved")
	q, err := Create(d, "q", Options{Size: 4})
	must(err)
	w, err := Attach(t.Context(), d, "q", WriterOptions{})
	must(err)
	h := &starvedHome{home: q.home, starved: true}
	q.home = h
	early := newLaneMourner(&q.core, 1) // nothing is seen
	h.starved = false
	late := newLaneMourner(&q.core, 2)
	w2, err := Attach(t.Context(), d, "q", WriterOptions{})
	must(err)
	h.starved = true
	for _, m := range []*laneMourner{early, late} {
		m.find(false)
		if m.lanes[2] != nil {
			t.Fatal("opened without a descriptor")
		}
	}
	h.starved = false
	for _, m := range []*laneMourner{early, late} {
		m.find(false)
		if m.lanes[1] == nil || m.lanes[2] == nil {
			t.Errorf("lanes %v after there are descriptors", m.lanes)
		}
		// What was there before the mourner has only its last writer for news.
		if old := m.old[1]; old != (m == early) {
			t.Errorf("row 1 is old: %v", old)
		}
		if m.old[3] {
			t.Error("a row without a lane is old")
		}
		m.close(nil)
	}
	must(w.Close())
	must(w2.Close())
	must(q.Close())
}
