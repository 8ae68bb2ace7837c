package cq

import (
	"slices"

	"github.com/shmring/shmring/shm"
)

// mourn has every death of other users' writers kept for takeDead. When it is ended, what comes
// after is kept only until its row has another writer: that is bounded by the number of rows.
func (h *memfdHome) mourn(on bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mourning = on
}

// rest takes back what nobody was told of: it is news to whoever is bound next. Between this sink
// and that one every death is kept.
func (h *memfdHome) rest(untold []peerNews) {
	h.mu.Lock()
	defer h.mu.Unlock()
	back := make([]PeerEntry, 0, len(untold)+len(h.dead))
	for _, n := range untold {
		back = append(back, n.PeerEntry)
	}
	h.dead = append(back, h.dead...)
}

// succeeded is called for a row that has another writer. The lock is held.
func (h *memfdHome) succeeded(bit int) {
	if !h.mourning {
		h.dead = slices.DeleteFunc(h.dead, func(p PeerEntry) bool { return p.Lane == bit })
	}
}

// takeDead returns the writers of other users that have died since the last call. Those whose lanes
// are retired already were noted by then.
func (h *memfdHome) takeDead() []PeerEntry {
	h.mu.Lock()
	defer h.mu.Unlock()
	for bit := range h.lanes {
		h.noteDead(bit, h.lanes[bit].att)
	}
	dead := h.dead
	h.dead = nil
	return dead
}

// noteDead keeps the death of a row's writer, if it is proved, once. The lock is held.
func (h *memfdHome) noteDead(bit int, a *attachment) {
	if a == nil || a.mourned || !a.peer.Gone() {
		return
	}
	a.mourned = true // what it says of itself now is its last word
	if owner := a.obj.Owner(); owner.State != shm.StateReleased {
		p := PeerEntry{Role: PeerWriter, Lane: bit, PID: a.peer.PID, Object: a.obj.Header().UUID,
			Generation: owner.Generation}
		p.First, p.End = laneShare(a.obj, bit, owner.Generation)
		h.dead = append(h.dead, p)
	}
}
