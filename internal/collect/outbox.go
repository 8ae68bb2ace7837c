package collect

import (
	"errors"
	"io/fs"

	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/shm"
)

// unexamined counts the lanes of an outbox with messages whose receivers live and have not said
// that they are done. A receiver lives as long as its own outbox does: both are of one endpoint.
// The lock of a collector looks like life for a moment; then the outbox stays until the next look.
//
// The owner sends no more, so a lane in which it has published nothing stays empty: it may have
// died before it claimed a row, or rang. A receiver that is told of such a lane finds the outbox
// gone, as it does after other deaths, and needs nothing of it; one that has it mapped keeps that.
func (t *target) unexamined(obj *shm.Object) (n int, err error) {
	o, err := kind.StoredOutbox(obj.Name(), obj.Header())
	if err != nil {
		return 0, err
	}
	lanes, done, err := kind.OutboxLanes(obj, o)
	if err != nil {
		return 0, err
	}
	for _, i := range kind.OutboxOpen(lanes, done) {
		slots, ok := kind.LaneSlots(obj, o, &lanes[i])
		if lanes[i].Target.Load() == o.ID { // what leads to the owner itself ends with it
			continue
		}
		if !ok || slots[0].Seq.Load() == 0 { // what leads nowhere is refused
			continue
		}
		lives, err := t.at.Owned(kind.FabricOutboxName(lanes[i].Target.Load()))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return n, err
		}
		if lives {
			n++
		}
	}
	return n, nil
}
