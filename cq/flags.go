package cq

import "strings"

// Flags describe a completion. The values are libfabric's (rdma/fabric.h), so that a log of one
// can be read with the manual of the other; bits 60 and up are a provider's own, which is us.
type Flags uint64

// Flags of libfabric that occur in completions, or in what is asked of an operation (FI_COMPLETION,
// FI_INJECT, FI_MORE and what a completion is to wait for): [Binding] takes those.
const (
	FlagMsg              Flags = 1 << 1
	FlagRMA              Flags = 1 << 2
	FlagTagged           Flags = 1 << 3
	FlagAtomic           Flags = 1 << 4
	FlagMulticast        Flags = 1 << 5
	FlagCollective       Flags = 1 << 6
	FlagRead             Flags = 1 << 8
	FlagWrite            Flags = 1 << 9
	FlagRecv             Flags = 1 << 10
	FlagSend             Flags = 1 << 11
	FlagRemoteRead       Flags = 1 << 12
	FlagRemoteWrite      Flags = 1 << 13
	FlagMultiRecv        Flags = 1 << 16
	FlagRemoteCQData     Flags = 1 << 17
	FlagMore             Flags = 1 << 18
	FlagPeek             Flags = 1 << 19
	FlagFence            Flags = 1 << 21
	FlagCompletion       Flags = 1 << 24
	FlagInject           Flags = 1 << 25
	FlagInjectComplete   Flags = 1 << 26
	FlagTransmitComplete Flags = 1 << 27
	FlagDeliveryComplete Flags = 1 << 28
	FlagCommitComplete   Flags = 1 << 30
	FlagMatchComplete    Flags = 1 << 31
	FlagRMAEvent         Flags = 1 << 56
	FlagDiscard          Flags = 1 << 58
	FlagClaim            Flags = 1 << 59
)

// Flags of libfabric that say what something is bound for or can do; they occur in no completion.
const (
	FlagTransmit            = FlagSend
	FlagSelectiveCompletion = Flags(1 << 59) // the number of FlagClaim: it is for binding only
	FlagSource              = Flags(1 << 57) // completions name their source
	FlagSourceErr           = Flags(1 << 50) // and are errors if it is not in the address vector
)

// Flags of this library.
const (
	// FlagRedelivered marks an entry that a reader who died, or detached, had been handed
	// before: it may have been acted on already.
	FlagRedelivered Flags = 1 << 63
	// FlagNoContext marks an entry that belongs to no posted operation. Its context is 0, which
	// is also a legal token; libfabric reports NULL here.
	FlagNoContext Flags = 1 << 62
	// FlagFrame says that Buf is a loan of a received frame, to be given back.
	FlagFrame Flags = 1 << 61
	// FlagInjectCall marks an operation that was posted by a call that never completes into a
	// queue (fi_inject, fi_tinject, fi_inject_write and so on). FlagInject, which an operation
	// of any call can have, only frees its buffer at once and completes as others do.
	FlagInjectCall Flags = 1 << 60
)

var flagNames = []struct {
	flag Flags
	name string
}{
	{FlagMsg, "MSG"}, {FlagRMA, "RMA"}, {FlagTagged, "TAGGED"}, {FlagAtomic, "ATOMIC"},
	{FlagMulticast, "MULTICAST"}, {FlagCollective, "COLLECTIVE"}, {FlagRead, "READ"},
	{FlagWrite, "WRITE"}, {FlagRecv, "RECV"}, {FlagSend, "SEND"},
	{FlagRemoteRead, "REMOTE_READ"}, {FlagRemoteWrite, "REMOTE_WRITE"},
	{FlagMultiRecv, "MULTI_RECV"}, {FlagRemoteCQData, "REMOTE_CQ_DATA"}, {FlagMore, "MORE"},
	{FlagPeek, "PEEK"}, {FlagFence, "FENCE"},
	{FlagCompletion, "COMPLETION"}, {FlagInject, "INJECT"},
	{FlagInjectComplete, "INJECT_COMPLETE"}, {FlagTransmitComplete, "TRANSMIT_COMPLETE"},
	{FlagDeliveryComplete, "DELIVERY_COMPLETE"}, {FlagCommitComplete, "COMMIT_COMPLETE"},
	{FlagMatchComplete, "MATCH_COMPLETE"}, {FlagRMAEvent, "RMA_EVENT"},
	{FlagDiscard, "DISCARD"}, {FlagClaim, "CLAIM"}, {FlagInjectCall, "INJECT_CALL"},
	{FlagFrame, "FRAME"}, {FlagNoContext, "NO_CONTEXT"}, {FlagRedelivered, "REDELIVERED"},
}

// String returns the names of the bits, separated by a bar.
func (f Flags) String() string {
	var b strings.Builder
	for _, n := range flagNames {
		if f&n.flag == 0 {
			continue
		}
		if b.Len() > 0 {
			b.WriteByte('|')
		}
		b.WriteString(n.name)
		f &^= n.flag
	}
	if f != 0 {
		if b.Len() > 0 {
			b.WriteByte('|')
		}
		b.WriteString("0x")
		const digits = "0123456789abcdef"
		for shift := 60; shift >= 0; shift -= 4 {
			if v := f >> shift; v != 0 {
				b.WriteByte(digits[v&15])
			}
		}
	}
	return b.String()
}
