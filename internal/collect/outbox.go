package collect

import (
	"errors"
	"io/fs"

	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/shm"
)

// unexamined counts the lanes of an outbox whose receivers live and have not said that they are
// done. A receiver lives as long as its own outbox does: both are of one endpoint. The lock of a
// collector looks like life for a moment; then the outbox stays until the next look.
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
