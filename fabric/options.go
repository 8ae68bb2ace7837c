package fabric

import (
	"errors"
	"io"
	"math"
	"math/bits"
	"os"
	"slices"
	"syscall"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/oserror"
	"github.com/shmring/shmring/shm"
)

const (
	// MaxMessage is the longest message, in bytes.
	MaxMessage = kind.FabricMostBytes
	// MaxInline is the longest message of Inject. It lies in a slot of a lane.
	MaxInline = kind.FabricInline
	// MaxDatagram is the longest message of an endpoint with Options.Datagram and chunks; without
	// them that is MaxInline.
	MaxDatagram = chunkBytes
)

// Options say what an endpoint is made of and bound to. The zero value of a number is its default.
type Options struct {
	// Transmit and Receive take the completions of sends and receives, through a writer of the
	// queue, one for both or two. Without one only counters count, and only Inject sends.
	Transmit, Receive *cq.Writer
	// Counters count operations that end, of the kinds that stand with them: FlagSend, FlagRecv,
	// FlagRead and FlagWrite, and FlagRemoteRead and FlagRemoteWrite, which are told here if they
	// come with data or the region says so. Reads of them and waits for them move the endpoint.
	Counters map[*cq.Counter]cq.Flags
	// Progress are the queues of this process whose reads move the endpoint.
	Progress []*cq.Queue
	// Peers is how many peers it can send to, and how many can send to it, at once: up to 4096, by
	// default 64. It is one itself if it sends to itself. Each takes 2.5 KiB of shared memory with
	// the default of Slots.
	Peers int
	// Slots is how many messages a lane holds, a power of two up to 1024, by default 8. One of them
	// is kept for the end of the lane.
	Slots int
	// Window is how many bytes of messages without a buffer each sender may have here: 4 KiB to
	// 1 GiB, by default 256 KiB. Every message counts at least 64, and takes 224 of private memory.
	// The peer of [Meet] has no longer one lent by FlagFrame, but for one that lies in its Pool.
	Window int
	// MinMultiRecv is how many bytes a buffer for several messages must have left to stay in use
	// (FI_OPT_MIN_MULTI_RECV), by default 64.
	MinMultiRecv int
	// ReleaseAlone tells the release of such a buffer by an entry of its own, whose only flag is
	// FlagMultiRecv. By default the completion of the last message in the buffer has that flag, and
	// only a buffer whose rest is too small for the next message has such an entry.
	ReleaseAlone bool
	// Buffered has each message without a tag and a receive be told of by a completion
	// (FI_BUFFERED_RECV), whose Context names it, whose Len is that of the message, and which has
	// FlagMore if Endpoint.Buffered returns less. That is the most that it returns of a message, in
	// bytes (FI_OPT_BUFFERED_LIMIT). Such messages are no more for receives, but for those that
	// claim them, whose completions have FlagClaim. 0: messages wait for receives in silence.
	Buffered int
	// Selective makes operations that succeed complete only if they ask for it, with FlagCompletion
	// or a level: FlagTransmit, FlagRecv or both (FI_SELECTIVE_COMPLETION).
	Selective cq.Flags
	// TransmitFlags go with Send and TSend, which take no flags (tx_attr op_flags): FlagCompletion,
	// FlagInject, FlagFence and levels.
	TransmitFlags cq.Flags
	// Chunks is how many pieces of 32 KiB of shared memory the endpoint has for payload that fits no
	// slot, up to 4096, by default 8; -1 is none. Without a free one such messages go by 192 bytes.
	// A peer that is stopped keeps at most half of the chunks that are free when it gets its own. So
	// of 2^n chunks one is left for others when n peers are stopped.
	Chunks int
	// Pool is how many bytes of shared memory there are for [Endpoint.Alloc], rounded up to 32 KiB,
	// up to 1 GiB. By default there is none.
	Pool int
	// Remote is how many bytes of shared memory there are for [Endpoint.Register], rounded up to
	// 4 KiB, up to 1 GiB. By default there is none.
	Remote int
	// RemoteFile, such as an *os.File, makes all regions memory that can last: Open reads Remote
	// bytes of it, of which the first region has the first. What peers write at level commit is
	// written there and synced when the endpoint moves, and nothing else is. The endpoint is locked
	// meanwhile, so methods of RemoteFile must not use it. It stays the caller's.
	RemoteFile interface {
		io.ReaderAt
		io.WriterAt
		Sync() error
	}
	// Datagram makes the endpoint one of type FI_EP_DGRAM: a message that finds no room is dropped,
	// and counted by Stats.Dropped, so that no send waits for a receiver. There is room for it if a
	// slot of the lane is free, what the receiver keeps of this sender is within its Window, and
	// one of Chunks is free if it is longer than MaxInline. Sends complete in the call, whether
	// their message was dropped or not; what becomes of it later is not told. Both ends must be of
	// this type ([ErrType]).
	Datagram bool
	// Events makes the endpoint one of type FI_EP_MSG, which has one peer: messages go to address 0
	// when it is connected, by [Endpoint.Connect], or by [Endpoint.Accept] if Request is what it is
	// for, and come from nobody else. It is as with [ListenEvents]. Request takes Events.
	Events  cq.EventSink
	Request *Request
	mux     *mux // takes all messages: connections go over this endpoint
	// Private memory is taken as messages come, up to Peers windows.
}

// defaultFlags are those that TransmitFlags may have.
const defaultFlags = sendFlags &^ (cq.FlagTagged | cq.FlagRemoteCQData | cq.FlagMore |
	cq.FlagInjectCall | cq.FlagCommitComplete | cq.FlagMulticast)

// Defaults of options.
const (
	defaultPeers  = 64
	defaultSlots  = 8
	defaultWindow = 256 << 10
	defaultMulti  = 64
	defaultChunks = 8
	chunkBytes    = 32 << 10
	mostChunks    = 1 << 12
	mostPool      = 1 << 30
)

func (o *Options) resolve() error {
	for _, n := range []struct {
		field         string
		v             *int
		or, min, most int
		pow2          bool
	}{
		{"Peers", &o.Peers, defaultPeers, 1, kind.FabricMostPeers, false},
		{"Slots", &o.Slots, defaultSlots, 2, kind.FabricMostSlots, true},
		{"Window", &o.Window, defaultWindow, kind.FabricMinWindow, kind.FabricMaxWindow, false},
		{"Buffered", &o.Buffered, 0, 0, math.MaxInt32, false},
		{"Chunks", &o.Chunks, defaultChunks, -1, mostChunks, false},
		{"Pool", &o.Pool, 0, 0, mostPool, false},
		{"Remote", &o.Remote, 0, 0, kind.FabricMostRemote, false},
		{"MinMultiRecv", &o.MinMultiRecv, defaultMulti, 1, math.MaxInt32, false},
	} {
		if *n.v == 0 {
			*n.v = n.or
		}
		if *n.v < n.min || *n.v > n.most || n.pow2 && bits.OnesCount(uint(*n.v)) != 1 {
			return refuse("open", "", n.field, *n.v, [2]int{n.min, n.most})
		}
	}
	o.Chunks = max(o.Chunks, 0)
	if o.Datagram {
		for field, set := range map[string]bool{"Events": o.Events != nil, "Pool": o.Pool > 0,
			"Remote": o.Remote > 0, "TransmitFlags": o.TransmitFlags&strong != 0} {
			if set {
				return refuse("open", "", field, nil,
					"nothing, or no more than level transmit, with Datagram")
			}
		}
	}
	if o.Buffered > 0 && o.Receive == nil {
		return refuse("open", "", "Receive", nil, "a writer, as Buffered is set")
	}
	if o.RemoteFile != nil && o.Remote == 0 {
		return refuse("open", "", "Remote", 0, "the length of RemoteFile")
	}
	if kind.NilPointer(o.Events) {
		return refuse("open", "", "Events", "a nil pointer", "a queue, or nil")
	}
	if o.Request != nil && o.Events == nil {
		return refuse("open", "", "Events", nil, "a queue, as Request is set")
	}
	if bad := o.TransmitFlags &^ defaultFlags; bad != 0 {
		return refuse("open", "", "TransmitFlags", bad, defaultFlags)
	}
	return nil
}

// What calls and error entries say beside errors of package cq. cq.ErrFull, which is EAGAIN, says
// that the lane, the grant or the queue has no room now, or that a peer has none until it notices
// who has gone: progress of both sides cures it. All are compared with errors.Is, as are the
// numbers in brackets. Calls that send and receive return them bare, so that they allocate nothing.
//
// An error entry has a number and nothing else. Compare it with the number, as in
// errors.Is(&entry, syscall.ECONNRESET), and not with [ErrPeerDied], which it never matches.
var (
	// ErrNoPeer: no endpoint has this name or address, or it has been closed (EHOSTUNREACH).
	ErrNoPeer = oserror.New("no such endpoint", syscall.EHOSTUNREACH)
	// ErrPeerDied: the process of the peer has ended (ECONNRESET).
	ErrPeerDied = oserror.New("the peer's process has ended", syscall.ECONNRESET)
	// ErrPeerClosed: the peer has closed its endpoint (EPIPE).
	ErrPeerClosed = oserror.New("the peer has closed its endpoint", syscall.EPIPE)
	// ErrRefused: the peer takes nothing from this endpoint: it could not map it, or found in its
	// lane what cannot be (ECONNABORTED).
	ErrRefused = oserror.New("the peer has refused this endpoint's lane", syscall.ECONNABORTED)
	// ErrCorrupt: the peer wrote what cannot be, and is cut off (EBADMSG).
	ErrCorrupt = cq.ErrCorrupt
	// ErrTooLong: more bytes than MaxMessage, MaxInline of Inject, or Options.Pool (EMSGSIZE).
	ErrTooLong = oserror.New("message is too long", syscall.EMSGSIZE)
	// ErrType: one of the two endpoints has Options.Datagram and the other has not (EPROTOTYPE).
	ErrType = oserror.New("the peer is an endpoint of another type", syscall.EPROTOTYPE)
	// ErrPeers: this endpoint, or the peer, has as many peers as it takes (ENOSPC).
	ErrPeers = oserror.New("no room for one more peer: open with more Options.Peers",
		syscall.ENOSPC)
	// ErrAddress: a number that Insert and Resolve did not return, or bytes that are no address
	// (EINVAL).
	ErrAddress = oserror.New("no such address", syscall.EINVAL)
	// ErrFlags: a flag that the call does not know, or one that contradicts another (EINVAL).
	ErrFlags = oserror.New("flags not supported by this call", syscall.EINVAL)
	// ErrNotSupported: what these endpoints do not do (EOPNOTSUPP).
	ErrNotSupported = oserror.New("not supported by this endpoint", syscall.EOPNOTSUPP)
	// ErrKey: no region of the peer has this key, or it was revoked (EKEYREJECTED).
	ErrKey = oserror.New("no such key: ask the peer for one", errKeyRejected)
	// ErrAccess: the region is not registered for that (EACCES).
	ErrAccess = oserror.New("the region does not allow that", syscall.EACCES)
	// ErrRange: bytes beyond the region, or an atomic that is not aligned (ERANGE).
	ErrRange = oserror.New("not within the region", syscall.ERANGE)
	// ErrNotConnected: the endpoint is not connected, or no more (ENOTCONN).
	ErrNotConnected = oserror.New("the endpoint is not connected", syscall.ENOTCONN)
	// ErrNotFound: no receive waits with this context, no message was claimed with it, or a loan was
	// given back before (ENOENT).
	ErrNotFound = oserror.New("no such operation is under way", syscall.ENOENT)
)

const pkg = "fabric" // of errors

// errKeyRejected is EKEYREJECTED, which other systems have no name for.
const errKeyRejected = syscall.Errno(129)

// hintName says what to do about a name that nobody has.
const hintName = "start the process that has that name, or set " + shm.EnvDir + " to its directory"

func fault(op, name string, err error) error { return hinted(op, name, "", err) }

// hinted is fault that says what to do.
func hinted(op, name, hint string, err error) error {
	return &shm.Error{Pkg: pkg, Op: op, Name: name, Err: err, Hint: hint}
}

// isAny reports whether an error is one of some.
func isAny(err error, of ...error) bool {
	return slices.ContainsFunc(of, func(is error) bool { return errors.Is(err, is) })
}

// refuse says which field of a call cannot be what it is.
func refuse(op, name, field string, got, want any) error {
	return &shm.Error{Pkg: pkg, Op: op, Name: name, Field: field, Got: got, Want: want,
		Err: cq.ErrInvalid}
}

var errClosed = fault("use", "", os.ErrClosed)

const (
	errCanceled = cq.Errno(syscall.ECANCELED)
	errIO       = cq.Errno(syscall.EIO)
)

// number is that of an error in an error entry.
func number(err error) cq.Errno {
	if err == errClosed {
		return errCanceled
	}
	for _, n := range []syscall.Errno{syscall.ECONNRESET, syscall.EPIPE, syscall.ECONNABORTED,
		syscall.EBADMSG, syscall.ECONNREFUSED} {
		if errors.Is(err, n) {
			return cq.Errno(n)
		}
	}
	return errIO
}
