package fabric

import (
	"errors"
	"io/fs"
	"slices"

	"github.com/shmring/shmring/internal/cma"
	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/shm"
)

// leastExposed is from how many bytes on one copy by the kernel is worth its calls.
const leastExposed = 64 << 10

// expose has the receiver read a payload by itself, if it would: its header says where that lies.
// What the receiver does not read goes in segments, as if nothing had been said.
func (l *outLane) expose(s *kind.FabricSlot, payload []byte, op *sendOp) (flag uint64) {
	if len(payload) < leastExposed || op.copied() || l.p.e.opt.DisableCMA ||
		l.p.words.page.Reads.Load() != 1 {
		return 0
	}
	s.More[1].Store(cma.Address(payload))
	return kind.FabricExposed
}

// withdraw comes before the end of sends that no record ends: their memory is the user's then. Who
// reads it looks at this word afterwards, and does not believe what was read if it is 0.
func (l *outLane) withdraw() {
	l.head.Exposes.Store(0)
	crash.At(crash.FabricWithdrawn)
}

// readExposed reads a message where its sender has it. It is false if that cannot be, or if what
// was read cannot be trusted: then the sender is asked for the bytes, and one that has gone answers
// by its end.
func (l *inLane) readExposed(p *pull) (ok bool) {
	e, mem := l.p.e, p.to.Memory()
	if p.m.exposed == 0 || !e.reads || len(mem) == 0 {
		return false
	}
	if err := cma.Read(l.box.Owner().PID, p.m.exposed, mem); err != nil {
		if errors.Is(err, fs.ErrPermission) || errors.Is(err, errors.ErrUnsupported) {
			e.reads = false
			e.page.Reads.Store(0)
		}
		return false
	}
	crash.At(crash.FabricCopied)
	// Both after the copy. The operation was open meanwhile; and the number was that of the sender's
	// process, which has it as long as it has the lock.
	exposes := l.lanes[l.place].Exposes.Load() == 1
	life, err := l.box.Life()
	e.keepDescriptor(l.box)
	return exposes && err == nil && life == shm.Alive
}

// mostAsked is how many outboxes keep the descriptor by which their owner's life was asked for: to
// open them again takes longer than to ask.
const mostAsked = 8

func (e *Endpoint) keepDescriptor(box *shm.Object) {
	if slices.Contains(e.asked, box) {
		return
	}
	if len(e.asked) == mostAsked {
		e.asked[0].SpareFD()
		e.asked = slices.Delete(e.asked, 0, 1)
	}
	e.asked = append(e.asked, box)
}
