package cq

import "github.com/shmring/shmring/shm"

// mourn says whether deaths of other users' writers are to be kept for takeDead.
func (h *memfdHome) mourn(on bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mourning, h.dead = on, nil
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
	if !h.mourning || a == nil || a.mourned || !a.peer.Gone() {
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
