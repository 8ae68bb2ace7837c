package endpoint

import (
	"fmt"
	"net/netip"
	"syscall"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/oserror"
	"github.com/shmring/shmring/internal/packet"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp"
)

// Static is a resolver of destinations that are known beforehand. It must not change while an
// endpoint uses it, unless the generation of the hop changes too.
type Static map[netip.Addr]xdp.Hop

// Lookup implements Resolver.
func (s Static) Lookup(dst netip.Addr) (xdp.Hop, error) {
	if h, ok := s[dst]; ok {
		return h, nil
	}
	return xdp.Hop{}, ErrUnreachable
}

// Config joins a socket, queues and addresses to an endpoint. Socket and one of Receive and
// Transmit are needed; zero values of all else stand for the defaults.
type Config struct {
	// Socket belongs to the endpoint once Open succeeded, and is closed with it.
	Socket *xdp.Socket
	// Receive and Transmit take the completions. They are two lanes, of one queue or of two, and
	// the endpoint's alone, so that a flood of received packets cannot take the room that was
	// promised to the completion of a send. They stay the caller's, to be closed afterwards.
	Receive, Transmit *cq.Writer
	// Selective makes successful operations complete only if they ask for it with FlagCompletion
	// or a level: FlagTransmit, FlagRecv or both (FI_SELECTIVE_COMPLETION). Loaned frames always
	// complete, since somebody has to return them.
	Selective cq.Flags
	// TransmitFlags go with the calls that take no flags (tx_attr op_flags).
	TransmitFlags cq.Flags
	// Counters count sends (FlagSend), receives (FlagRecv) or both that end.
	Counters map[*cq.Counter]cq.Flags
	// Events learns once a second at most of a lack of frames (cq.EventStarved, whose Data is how
	// many are lent) and of a device that is gone, which is an error event with ENXIO; with Watch also
	// of everything else that happens to the interface. An event queue of this process is one that
	// was opened with EventOptions.Write.
	Events cq.EventSink
	// Watch makes the endpoint follow its interface: cq.EventLinkUp to cq.EventQueues come to
	// Events, a change of the MTU is a change of what can be sent, and a Run that sleeps learns at
	// once that the device is gone. Without CAP_SYS_ADMIN, Open must be called on a thread in the
	// interface's network namespace.
	Watch *WatchOptions
	// Context stands in those events.
	Context uint64

	// Addresses says whom a cq.Addr means. Sources of received datagrams are looked up in it.
	Addresses *cq.AddressVector
	// SourceErr makes an error entry, with EADDRNOTAVAIL and the address in ErrData, of a datagram
	// whose source is not in Addresses (FI_SOURCE_ERR).
	SourceErr bool
	// Local is whom datagrams come from. An address that is not set is that of the route.
	Local netip.AddrPort
	// LocalMAC is needed only to send to groups that the resolver knows no way to.
	LocalMAC [6]byte
	// Resolver finds the way. Without one nothing but groups can be sent to. [Static] is one that is
	// told. It is called with the endpoint's lock held, and must neither block nor call the
	// endpoint. Errors are [ErrResolving] and [ErrUnreachable], wrapped or not, and
	// [xdp.ErrLinkDown], with which packets to peers that were known before wait for the link; any
	// other counts as unreachable. A resolver may have a method Generation() uint64: as long as it
	// returns the same number, no lookup that was answered is repeated.
	Resolver xdp.Resolver

	// Tags are put into every packet (VLAN), outermost first, at most two.
	Tags []Tag
	// HopLimit of packets; 64 by default, and 1 to groups.
	HopLimit uint8
	// TrafficClass of packets: differentiated services and ECN.
	TrafficClass uint8

	// RemoteData puts a header of ShimBytes in front of every payload, which carries remote CQ
	// data, and expects it in every datagram received. Both ends must agree on it.
	RemoteData bool
	// Posted makes the endpoint receive into buffers that Recv posts, rather than lend frames. A
	// datagram without a buffer waits in the receive ring; once that is full the kernel drops and
	// counts.
	Posted bool
	// MinMultiRecv is how much room a multi-receive buffer must have left to stay in use, in bytes
	// (FI_OPT_MIN_MULTI_RECV); 64 by default.
	MinMultiRecv int
	// ReleaseAlone tells the release of such a buffer by an entry of its own, whose only flag is
	// FlagMultiRecv. By default the completion of the last message in the buffer has that flag, and
	// only a buffer whose rest is too small for the next message has such an entry, since its last
	// message was reported before that was known.
	ReleaseAlone bool
	// WrongChecksums lends frames of datagrams with a wrong UDP checksum too, whose record has
	// xdp.RecordChecksumWrong. By default they are dropped and counted, as the kernel does. An absent
	// sum is right over IPv4, and that of the pseudo header alone, as veth leaves it, on every
	// interface. A posted buffer has no record, so that Posted contradicts it.
	WrongChecksums bool

	// Directory is where the endpoint's object stands, by which tools look at it and capture its
	// packets (packages status and capture): the default directory if nil. An endpoint that cannot
	// have one, or has NoObject, works all the same. Counters are there as of the last round that
	// found nothing to do and followed no post, or of 100 µs before the last round.
	Directory *shm.Dir
	NoObject  bool

	// Shared makes every call safe from any goroutine, by a lock.
	Shared bool
	// Progress are queues of this process whose reads, polls and waits drive the endpoint, so that
	// nobody has to call Progress or Run (FI_PROGRESS_MANUAL). With a reader in another goroutine
	// than the one that posts, Shared must be set.
	Progress []*cq.Queue
	// RxBatch is how many packets one round takes, 64 by default.
	RxBatch int
	// Spin is how long Run looks before it sleeps; as in cq.Options.
	Spin time.Duration
}

// Tag is one VLAN tag (IEEE 802.1Q).
type Tag struct {
	Kind uint16 // EtherType of the tag: 0x8100, which zero stands for too, or 0x88a8
	TCI  uint16 // priority in the upper 3 bits, VLAN id in the lower 12
}

// MaxPieces is the longest scatter list (iov_limit).
const MaxPieces = 8

func (c *Config) resolve() error {
	bad := func(what, hint string) error {
		return fault("open", fmt.Errorf("%w: %s", xdp.ErrOptions, what), hint)
	}
	const sides = cq.FlagTransmit | cq.FlagRecv
	switch {
	case c.Socket == nil:
		return bad("Socket is missing", "")
	case c.Receive == nil && c.Transmit == nil:
		return bad("Receive and Transmit are missing", "attach a writer to a queue")
	case kind.NilPointer(c.Events):
		return bad("Events is a nil pointer", "")
	case c.Receive == c.Transmit:
		return bad("Receive and Transmit are one writer", "attach a second lane")
	case c.Selective&^sides != 0:
		return bad(fmt.Sprintf("Selective has %v", c.Selective&^sides),
			"possible are FlagTransmit and FlagRecv")
	case c.TransmitFlags&^postFlags != 0:
		return bad(fmt.Sprintf("TransmitFlags has %v", c.TransmitFlags&^postFlags), "")
	case c.RxBatch < 0 || c.MinMultiRecv < 0:
		return bad("RxBatch or MinMultiRecv is negative", "")
	case c.Addresses != nil && c.Addresses.Options().Format == cq.AddrOpaque:
		return bad("Addresses holds no socket addresses", "create it with cq.AddrSockaddr")
	case c.SourceErr && c.Addresses == nil:
		return bad("SourceErr without Addresses", "")
	case c.Posted && c.WrongChecksums:
		return bad("Posted with WrongChecksums", "a posted buffer has nothing to mark them with")
	case c.Posted && c.Receive == nil:
		return bad("Posted without Receive", "")
	}
	for _, flags := range c.Counters {
		if flags&^sides != 0 {
			return bad(fmt.Sprintf("a counter is to count %v", flags&^sides),
				"datagrams are sent and received")
		}
	}
	if c.RxBatch == 0 {
		c.RxBatch = 64
	}
	if c.MinMultiRecv == 0 {
		c.MinMultiRecv = 64
	}
	return nil
}

// tags are those of every packet.
func (c *Config) tags() (out []packet.Tag) {
	for _, t := range c.Tags {
		out = append(out, packet.Tag(t))
	}
	return out
}

// What a post can be refused with beside errors of package cq: cq.ErrFull says that the queue of
// completions has no room for one more operation, and is EAGAIN like the first three here. They
// are compared with errors.Is, as are the numbers in brackets, and returning one never allocates.
var (
	// ErrNoFrame: every send frame is under way (EAGAIN). Post again after Progress.
	ErrNoFrame = oserror.New("no free frame to send from: post again after Progress",
		syscall.EAGAIN)
	// ErrFenced: a post with FlagFence while earlier sends are under way (EAGAIN).
	ErrFenced = oserror.New("earlier sends are under way: post the fenced one again after Progress",
		syscall.EAGAIN)
	// ErrResolving: the hardware address of the destination is being asked for (EAGAIN).
	ErrResolving = packet.ErrResolving
	// ErrUnreachable: there is no way to the destination (EHOSTUNREACH). Operations that have a
	// completion are accepted and end with this number in an error entry; inject returns it.
	ErrUnreachable = packet.ErrUnreachable
	// ErrNotSupported: a datagram endpoint cannot do this, or was not configured to (EOPNOTSUPP).
	ErrNotSupported = oserror.New("not supported by this endpoint", syscall.EOPNOTSUPP)
	// ErrTooBig: the payload does not fit one packet on the path (EMSGSIZE).
	ErrTooBig = xdp.ErrTooBig
	// ErrAddress: the address is not in the address vector, or cannot be sent to from here
	// (EINVAL).
	ErrAddress = oserror.New("no address that this endpoint can send to", syscall.EINVAL)
	// ErrFlags: a flag that the call does not know, or one that contradicts another (EINVAL).
	ErrFlags = oserror.New("flags not supported by this call", syscall.EINVAL)
	// ErrPieces: a scatter list of more than MaxPieces pieces (EINVAL).
	ErrPieces = oserror.New("scatter list is too long", syscall.EINVAL)
	// ErrFrame: the frame is not the caller's: given back already, or never received (EINVAL).
	ErrFrame = xdp.ErrFrame
	// ErrDriven: another goroutine drives the endpoint (EBUSY).
	ErrDriven = oserror.New("another goroutine drives this endpoint", syscall.EBUSY)
	// ErrNotFound: no operation with this context can be cancelled (ENOENT).
	ErrNotFound = oserror.New("no such operation is under way", syscall.ENOENT)
)

// Numbers of error entries.
const (
	errCanceled    = cq.Errno(syscall.ECANCELED)
	errUnreachable = cq.Errno(syscall.EHOSTUNREACH)
	errRefused     = cq.Errno(syscall.EIO)
)

const pkg = "endpoint" // of errors

func fault(op string, err error, hint string) error {
	return &shm.Error{Pkg: pkg, Op: op, Err: err, Hint: hint}
}
