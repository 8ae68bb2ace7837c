//go:build !linux

package doorbell

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/shmring/shmring/internal/spin"
)

// Elsewhere there is no futex that two processes share: waits poll, so that the logic can be
// tested; shm refuses to create objects there.
const pollEvery = time.Millisecond

func wakeAll(*atomic.Uint32) {}

func wait(word *atomic.Uint32, old uint32, deadlineNs int64) {
	for word.Load() == old && (deadlineNs == 0 || spin.Now() < deadlineNs) {
		time.Sleep(pollEvery)
	}
}

type watched struct {
	value uint64
	word  *atomic.Uint32
}

func waitMany(words []watched, deadlineNs int64) error {
	for deadlineNs == 0 || spin.Now() < deadlineNs {
		for _, w := range words {
			if uint64(w.word.Load()) != w.value {
				return nil
			}
		}
		time.Sleep(pollEvery)
	}
	return nil
}

func passAll() {}

// HasWaitMany reports that the system has no futex.
func HasWaitMany() error { return errors.ErrUnsupported }

// writeByte reports that the system is not supported.
func writeByte(int) error { return errors.ErrUnsupported }

// Forward passes nothing on: this system has no producers of other users.
func (*Bell) Forward(int, *atomic.Uint32, func() uint64) (stop func()) { return func() {} }
