package udp

import (
	"net/netip"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
)

// backend carries the datagrams of a [Stack]: an endpoint on a queue of the interface, or what
// stands for one. The stack calls its methods one at a time, but for Wait, which one goroutine of
// the stack is in nearly always, and Close, which comes last and ends Wait.
type backend interface {
	// Receive moves what can be moved without waiting, and lends up to len(dst) datagrams.
	Receive(dst []datagram) (int, error)
	// Frames is how many datagrams may be lent at a time while enough is left to receive into.
	Frames() int
	// Release gives loans back, in any order.
	Release(loans []datagram) error
	// MaxPayload is the longest payload that may go to an address, in bytes, as far as that is known
	// before the way is.
	MaxPayload(to netip.Addr) int
	// Send takes a copy of one datagram; Flush sees to it that it leaves. The source is chosen by
	// route if from has no address. Errors that the stack deals with, and no program gets to see:
	// EAGAIN when there is no room at the moment, and [ErrResolving] while the next hop's address
	// is being asked for.
	Send(payload []byte, from, to netip.AddrPort) error
	// Flush shows what was sent to the device.
	Flush() error
	// Arm makes Wait look again for what comes from now on. It reports whether something has come
	// since the last Receive.
	Arm() (ready bool, err error)
	// Wait calls look at once, and again whenever something may have come since, until look
	// returns true or the backend is closed.
	Wait(look func() (done bool)) error
	// Check reports a device that is gone, of which Wait need not learn. It is called once a
	// second.
	Check() error
	Close() error
}

// datagram is a datagram that a backend received and lends until Release.
type datagram struct {
	Payload  []byte // nobody writes to it
	From, To netip.AddrPort
	Entry    cq.Entry // this and View are the backend's own
	View     shm.Loan
}
