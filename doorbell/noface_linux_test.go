package doorbell

import (
	"testing"

	"github.com/shmring/shmring/ring"
)

// TestNoDescriptorMutesNobody: a producer that cannot reach the user's descriptor must not mark the
// arming as rung, or those who can would stay silent and the user asleep.
func TestNoDescriptorMutesNobody(t *testing.T) {
	face := newFace(t, -1)
	q := heapQueue(t, 2)
	r := newReader(q, readerOptions{face: face})
	without := q.writer(0, ring.SeqCst, func(c *RingerConfig) {
		c.Face = func(uint16) int { return -1 }
	})
	with := q.writer(1, ring.SeqCst, dup(face.EventFD()))
	defer with.Close()
	ep := userEpoll(t, face, 0)
	idle(t, r)
	without.put(1)
	if wakes(t, ep, 0) {
		t.Fatal("rung without a descriptor")
	}
	with.put(1)
	if !wakes(t, ep, 5000) {
		t.Fatal("muted by a producer that could not ring")
	}
	if n := r.read(laneSlots); n != 2 {
		t.Errorf("read %d entries of 2", n)
	}
}
