package cq

import "github.com/shmring/shmring/shm"

// succession tells of the owners of an object of this user, one after the other.
type succession struct {
	witness witness
	known   uint64 // generation of the owner that this process knows of
}

// begin starts with the present owner: its death is news, whenever it came.
func (s *succession) begin(obj *shm.Object) {
	s.witness.obj = obj
	if owner := obj.Owner(); owner.Generation > 0 {
		s.known = owner.Generation
		if owner.State == shm.StateReleased {
			s.witness.settle(owner.Generation)
		} else {
			s.witness.settle(owner.Generation - 1)
		}
	}
}

func (s *succession) look(entry func(shm.Owner) PeerEntry) (out []peerNews) {
	out = s.witness.news(entry)
	owner := s.witness.obj.Owner()
	if owner.Generation > s.known && owner.State == shm.StateOwned {
		s.known = owner.Generation
		out = append(out, peerNews{EventPeerNew, entry(owner)})
	}
	return out
}

// bind has what who finds reported from now on, or nothing any more. who is given the mourner whose
// report this one replaces, or nil.
func (b *deathBinding) bind(fid FID, events EventSink, who func(former mourner) mourner) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if events != nil {
		if err := events.bind(); err != nil {
			return err
		}
	}
	former := b.end()
	if events != nil {
		b.report = startReport(fid, events, who(former))
	}
	return nil
}

// unbind is the end of what was bound, which nobody can bind any more.
func (b *deathBinding) unbind() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.end()
}

// ownerMourner tells who looks things up in an address vector of its owners.
type ownerMourner struct {
	v *AddressVector
	succession
}

func (m *ownerMourner) look() []peerNews { return m.succession.look(m.entry) }

func (m *ownerMourner) entry(o shm.Owner) PeerEntry {
	return PeerEntry{Role: PeerOwner, PID: o.PID, PIDNS: o.PIDNS, StartTicks: o.StartTicks,
		Object: m.v.obj.Header().UUID, Generation: o.Generation}
}

func (m *ownerMourner) telling(*peerNews) {}
func (m *ownerMourner) told(*peerNews)    {}
func (m *ownerMourner) close([]peerNews)  { m.witness.rest() }

// bindOwner has the owner's death reported to a process that only looks things up.
func (v *AddressVector) bindOwner(events EventSink) error {
	return v.deaths.bind(v.fid, events, func(mourner) mourner {
		m := &ownerMourner{v: v}
		m.begin(v.obj)
		return m
	})
}
