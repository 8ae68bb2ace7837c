// Package xdp receives and sends packets of a network device by AF_XDP: the kernel puts frames into
// memory that this process shares with it, and other processes may read them there.
//
// A [UMEM] is the memory, divided into frames. A [Socket] binds it to one queue of an interface and
// moves frames through four rings. A [Program] in the kernel steers frames to sockets by rules; all
// else goes to the kernel's stack as if nothing were there. [Probe] says beforehand what a device
// and the kernel can do.
//
// # A frame
//
// A frame is a chunk of the UMEM:
//
//	+--------------+------------------+----------------------------------+
//	| record, 64 B | kernel's, 256 B  | packet, from its Ethernet header |
//	+--------------+------------------+----------------------------------+
//	0              HeadroomBytes      HeadroomBytes + 256
//
// The [Record] is written by the process that owns the socket before it hands the frame to an
// application, and says what does not fit a completion: addresses, time stamp, VLAN, queue.
//
// Each frame is in one state at any time, as [FrameStats] names them, and the numbers of frames in
// all states add up to the number of frames, whatever applications and the kernel do:
//
//	free -> fill -> received -> loaned -> free      (receive pool)
//	                   received or loaned -> send -> free   (sent on from where it lies)
//	free -> build -> send -> free                   (send pool)
//
// A frame of which the kernel says something impossible goes to quarantine and stays there. An
// application returns a loaned frame by naming the generation that it got it under, so a second or
// a late return is noticed, counted and ignored. The two pools do not lend to each other: receivers
// that hold on to all frames do not keep anybody from sending.
//
// # Several sockets
//
// [OpenShared] makes more sockets on the queue of one: they have the frames, the fill ring and the
// completion ring in common, and receive and transmit rings of their own. The kernel puts the
// completions of all into one ring; whichever socket looks sorts them, so that each gets what it
// sent. One goroutine uses all sockets of a queue, since each of these rings has one user. When one
// is closed, what lay in its rings goes back to the others.
//
// Sockets on other queues, or on other interfaces, may take parts of one UMEM (Options.Frames),
// each with frames and rings of its own: they share nothing that one of them could make another
// wait for, so each may have a goroutine of its own. A frame does not go from one part to another.
//
// # Packets in several frames
//
// With Options.MultiBuffer a packet longer than a frame is several [Received] in a row, all but the
// last with More. Only whole packets are handed out: one whose end is not there yet, or for which
// the caller has no room, waits in the ring. [Socket.PostChain] sends one. Without the option, a
// packet that does not fit is dropped and counted by the kernel when it arrives, and refused with
// [ErrTooBig] when it is posted.
//
// # Memory and modes
//
// What was asked for and what the kernel granted are two things: [Socket.Info] and
// [UMEM.HugePages] tell. Huge pages fall back to ordinary ones, with the reason. Drivers that do
// not copy, and busy polling, are asked for by options that are passed through; veth, on which this
// package is tested, has neither.
//
// # What completed means
//
// A send completion says that the kernel is done with the packet, not that anybody got it. The
// kernel completes packets that the device refused like all others; SyscallStats.SendDropped
// counts those.
//
// # Above it
//
// The package knows nothing of completion queues. Package endpoint joins a socket and queues of
// package cq to operations and completions, package device lets processes of other users send and
// receive by one process that owns the device, and package udp is a net.PacketConn over both.
//
// # Steering
//
// A program is attached to an interface once, and has slots for sockets. [Socket.Register] puts a
// socket at a base plus the number of its queue; a [Rule] says which frames go to which base, by
// UDP port, destination prefix, VLAN, EtherType, or several of these:
//
//	p, err := xdp.Attach("eth0", xdp.ProgramOptions{})
//	err = socket.Register(p, 0)
//	id, err := p.AddRule(xdp.Rule{UDPPort: 4791, Dst: prefix}, xdp.Target{Base: 0})
//	rules, err := p.Rules() // what each did so far
//
// Rules come and go while frames arrive, and none is ever half there. The most special rule
// decides; a rule may also hand frames to the kernel, as an exception from a wider one, or drop
// them. Frames for a queue without a socket go to the kernel. Under any rule the host stays
// reachable: see [Rule] for what is never taken.
//
// The kernel detaches the program when the process that attached it ends. A program of others is
// never replaced: [ErrProgramAttached].
//
// # Trust
//
// The UMEM is a sealed memfd. A process that is given its descriptor can read all frames, those of
// other applications on the same socket included, and can change nothing; use one UMEM for each
// domain of trust. The descriptor of the socket itself should not be given away, since what it
// sends and receives cannot be revoked.
//
// # Namespaces
//
// Open and Attach look an interface up in the network namespace of the calling thread. In a process
// that uses several, lock the goroutine to its thread before.
//
// The package works on Linux from 5.10 on; elsewhere it compiles, and its functions return errors
// that wrap errors.ErrUnsupported.
//
// # Files
//
//	umem, frames, core, core_send     memory, and who owns which frame of it
//	ring, order                       the rings that the kernel shares
//	socket, bind                      system calls: a socket, its rings and its queue
//	rule, program, bpf/               steering: rules, and the program in C
//	probe, sim                        what a device can do; sockets for tests
package xdp
