//go:build !linux

package futex

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/shmring/shmring/internal/spin"
)

// Elsewhere there is no futex that two processes share: waits poll, so that the logic can be
// tested; shm refuses to create objects there.
const pollEvery = time.Millisecond

// WakeAll wakes nobody.
func WakeAll(*atomic.Uint32) {}

// Wait sleeps while the word holds old, until the absolute monotonic deadline (0: none).
func Wait(word *atomic.Uint32, old uint32, deadlineNs int64) {
	for word.Load() == old && (deadlineNs == 0 || spin.Now() < deadlineNs) {
		time.Sleep(pollEvery)
	}
}

// Watched is a word and the value that it had.
type Watched struct {
	Value uint64
	Word  *atomic.Uint32
}

// WaitMany sleeps while every word holds its value, until the deadline.
func WaitMany(words []Watched, deadlineNs int64) error {
	for deadlineNs == 0 || spin.Now() < deadlineNs {
		for _, w := range words {
			if uint64(w.Word.Load()) != w.Value {
				return nil
			}
		}
		time.Sleep(pollEvery)
	}
	return nil
}

// HasWaitMany reports that the system has no futex.
func HasWaitMany() error { return errors.ErrUnsupported }
