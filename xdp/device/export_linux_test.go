package device

import (
	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
)

// What tests do that an endpoint does not.

// Submit posts any entry as a command.
func (e *Endpoint) Submit(c cq.Entry) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.sess == nil {
		return ErrServerGone
	}
	return e.sess.sq.Post(&c)
}

// Regions returns the numbers of the UMEM and of the payload memory.
func (e *Endpoint) Regions() (umem, payload uint16) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.sess.umem.ID(), e.payload.ID()
}

// Hello is the message that an application begins with, and Memory the one that brings its payload
// memory.
func Hello(ports ...uint16) []byte { return (&hello{step: stepHello, ports: ports}).encode() }
func Memory() []byte               { return (&hello{step: stepMemory}).encode() }

// Granted returns what a grant says of the payload memory.
func Granted(b []byte) (sends, slotBytes int, err error) {
	h, err := decodeHello(b)
	return int(h.sends), int(h.slotBytes), err
}

func NewPayload(slots, slotBytes int) (*shm.Region, error) { return newPayload(slots, slotBytes) }
