// Package endpoint is a datagram endpoint on an AF_XDP socket that reports to completion queues:
// the fabric's FI_EP_DGRAM, with UDP on the wire, so that the other side can be anybody's.
//
//	e, err := endpoint.Open(endpoint.Config{Socket: s, Receive: rx, Transmit: tx, Addresses: av,
//		Resolver: table, Local: addr})
//	err = e.Send(payload, to, context)      // fi_send; SendMsg, SendBatch, Inject
//	f, err := e.Frame()                     // write to f.Bytes(), then SendFrame: no copy
//	n, err := e.Progress()                  // or Run in a goroutine, or Config.Progress
//	b, err := e.Payload(&entry)             // a received datagram, in place
//	err = e.Release(entry)                  // give its frame back
//
// Where the frames come from and go to is package xdp's part: the socket, the steering program that
// says which datagrams come here, the UMEM. Routes and neighbours are package netif's. What is
// here is the fabric's part: operations, completions, addresses. An endpoint takes all that is
// steered to its socket: a rule for a port alone brings datagrams for other hosts as well, which
// the kernel would have forwarded or refused. A rule with Dst or Local does not.
//
// # Frames
//
// A received datagram stays where the kernel put it, in a frame of the UMEM, and the completion
// lends it: Buf refers to the payload, [Endpoint.Record] knows addresses, time and tag, and
// [Endpoint.Release] gives it back under the generation in the completion, so that a second or a
// late return is noticed and harmless. A reader in another process maps the UMEM read-only and
// has frames returned by its copy of the entry ([Endpoint.Release]); when it dies, its successor
// has [Endpoint.Reclaim] take back what it held. With Config.Posted datagrams are copied to the
// user's own memory instead ([Endpoint.Recv]); a multi-receive buffer takes several of them.
//
// On a socket with Options.MultiBuffer a datagram may lie in several frames. Each is lent by a
// completion of its own, in order and without others between; all but the last have FlagMore, and
// each is given back by itself.
//
// Nothing is dropped here that could be reported later: a datagram that finds no room in the
// queue, or no posted buffer, waits in the receive ring; when that is full the kernel drops and
// counts.
//
// # Completions
//
// A send completes when the kernel gave its frame back (FI_TRANSMIT_COMPLETE, the default): the
// datagram was handed to the device, which says nothing about whether anybody got it. The payload
// of Send and its like is copied, so FI_INJECT_COMPLETE is reached at once. What only the receiver
// could know, FI_DELIVERY_COMPLETE, FI_MATCH_COMPLETE and FI_COMMIT_COMPLETE, is EOPNOTSUPP at
// post. A packet that the device refused is an error entry with EIO if it was the only one of its
// system call; of several the kernel does not say which one it was, and only
// xdp.SyscallStats.SendDropped counts it.
//
// FI_FENCE: a post waits until all before it have completed, which is to say that it is EAGAIN
// until then. FI_MORE: the kernel is told by the first post without it.
//
// # Credits
//
// Every post reserves the room of its completion and is EAGAIN when there is none, so that a
// completion is never lost and never waits. Operations that report nothing if all goes well, which
// are injects and those of a selective binding that do not ask, reserve nothing: if such a one
// fails and the queue is full, its error entry is counted as abandoned. Nor do the messages in a
// multi-receive buffer; they wait for room instead. With a queue of the policy cq.OverrunQueue
// nothing is reserved, posts are never refused for want of room, and the queue is overrun
// (FI_RM_DISABLED): sizing it is the application's part.
//
// # Progress
//
// A post tells the kernel by itself, and in copy mode the completion is there when it returns.
// Everything else happens in Progress: by a caller's loop, by [Endpoint.Run], which sleeps in poll
// when there is nothing to do, or by whoever reads the queue (Config.Progress). An endpoint is one
// goroutine's unless it is Config.Shared; endpoints on sockets that share a queue or a UMEM are
// all the same goroutine's, shared or not.
//
// # Trust
//
// The wire is hostile: what comes from it is parsed with every length bounded, and what makes no
// sense is counted and dropped. So is the kernel's word about frames, by package xdp. Readers in
// other processes cannot write to frames; what they return is checked against the frame table.
// Source addresses of datagrams are what the sender wrote.
//
// # Files
//
//	config, endpoint, monitor          what is opened, its rounds, and what it says to others
//	receive, posted                    a packet becomes a completion
//	send, sendframe                    an operation becomes a packet, and completes
//	peers                              whom addresses and groups mean
package endpoint
