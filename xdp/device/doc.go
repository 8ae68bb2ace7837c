// Package device is a device process for many applications: a [Server] owns a network interface and
// the privilege that this takes, and processes of other users send and receive UDP datagrams
// through it, each with an [Endpoint], without any privilege and without a raw socket.
//
//	application                              device process (shmctl serve)
//	completion queue   <---- lane RX ------  packets: copied into the application's UMEM
//	                   <---- lane TX ------  ends of sends
//	submission queue   ----- lane -------->  sends, frames given back
//	payload memory     ----- memfd ------->  read when a packet is built
//	UMEM, status page  <---- memfds -------  of this application alone
//	connection         <---- socket ------>  hello, ports, and the proof of death
//
// # Who can do what to whom
//
// Applications do not trust each other, nor the server them. Nothing is writable for two processes:
// the queues are of the kind cq.CrossUser, and every memfd that passes is sealed against all
// writing but through the mapping that its maker has (see shm.SealOthers).
//
// Whoever maps a UMEM sees all that passes it, and the kernel knows one UMEM for each queue of an
// interface. So that no application sees another one's packets, the server receives into a UMEM of
// its own, and copies each packet into one that it made for the application: that is what the
// process in the middle costs, beside the way through two more queues. Applications that are alone
// on a queue and may be trusted with all of its traffic are better off with package endpoint.
//
// One application at a time may read frames where the kernel put them (Request.InPlace): it maps
// the server's UMEM, for reading, and sees all packets. So it is of the server's own user, which
// could look into the server anyway, and the server has one queue. It has as many of the frames as
// it was granted, half of all at most. All else is as for any other application.
//
// An application gets packets to the UDP ports that it took, and sends from these ports only. What
// it may take is said by the allow-list ([Allow]), by user or group as the kernel names it: ports,
// frames, sends under way, rules, connections, memory of queues. All processes that one line names
// share its budget. The ways to the destinations that they sent to last are remembered: a line
// that sends everywhere has its own forgotten, and nobody else's.
//
// It gets those packets to its ports that are for the interface itself: untagged, to an address of
// the interface and its hardware address, or to a group that somebody has joined on the interface
// and the hardware address of that group. The steering program leaves all else to the kernel: what
// is for other hosts, and forwarded perhaps, broadcast, and other VLANs. So an address or a group
// that is not the interface's own is not taken even if the kernel would accept it there; and
// fragments are the kernel's always. Addresses are followed as they come and go, groups with up to
// a second of delay. A line of the allow-list with "to=any" takes packets to its ports whatever
// they are addressed to. A tag that the device takes out of the frame is not seen: switch that off
// where VLANs are to be told apart ("ethtool -K IFACE rxvlan off").
//
// Packets with a wrong checksum are dropped and counted, as the kernel does; those with a wrong UDP
// checksum, or none over IPv6, only if the application did not ask for them
// (Request.WrongChecksums). The sum of the pseudo header alone is taken for right on every
// interface: datagrams that a socket of this machine sent over veth have no more.
//
// Submissions are loaded once, bounded, and answered: with a completion, with an error completion
// that has the context of the command, or, if a command cannot be answered for want of room, by
// leaving it where it is. A frame comes back under the generation that it was handed out with;
// another return is counted and changes nothing.
//
// # One application and the others
//
// One goroutine moves everything. In each round every application has up to Config.TxBatch
// commands carried out; which one is first changes from round to round. Frames that come back do
// not count, so that returning them costs an application no sends. A send that waits for a
// hardware address waits beside the queue, not in it. A packet whose application has all of its
// frames, or leaves its queue full, is dropped and counted for it: nobody waits for an
// application. One that breaks its queue, or whose memory cannot be read, is hung up on.
//
// A killed application is noticed by the end of its connection and of its process, whichever comes
// first. Ports, frames, budget and memory are back after that at once; packets of it that are with
// the kernel come back to nobody when they are sent.
//
// # The death of the server
//
// An endpoint notices it the same way. There is one [Event]; calls return [ErrServerGone] until
// there is a server at the path again, with new memory of a higher generation. Frames of the former
// one stay readable, and are only counted when they are released. Each send has exactly one
// completion in all this: for each send slot the server stores under which index it is about to
// publish the completion of the last send, and cq.Queue.Lane says which were, so what is
// missing is completed by the endpoint itself, with ECANCELED. Whether such a datagram was sent is
// not known.
//
// A server is stopped and started without losing a completion either; packets that arrive while
// there is none go to the kernel's stack, which answers that nobody listens.
//
// # Looking at it
//
// The server's sockets have objects like those of package endpoint, one for each queue, which
// processes of the server's own user see: "shmctl xdp" lists them, and "shmctl capture IFACE"
// copies what all applications receive and send. Applications can neither see nor ask for that.
//
// # Meeting
//
// Messages have one size and form (protocol.go). The application connects to a seqpacket socket,
// which everybody may connect to, and is found on the allow-list or hung up on.
//
//	application                          server
//	hello: frames, sends, ports  ----->  allow-list, budget, ports
//	                             <-----  grant, with UMEM and status page; or a no with a reason
//	memory, with payload memory  ----->  mapped read-only
//	cq.Queue.Accept, twice       <---->  cq.Attach, twice
//	cq.Attach                    <---->  cq.Queue.Accept
//	                             <-----  ready: numbers of the lanes
//	start                        ----->  packets come from here on
//	                             <-----  done
//	take or drop a port          ----->
//	                             <-----  done, or a no
//
// A peer that takes more than five seconds to start is hung up on. One user can begin only a few
// connections at a time; if there are more, the server says so and Dial tries again.
//
// # What there is not
//
// Reading frames where the kernel put them for several applications, which would need a queue of
// the device for each; datagrams longer than one frame; and the operations of package endpoint
// beyond sending, injecting and receiving loaned frames.
//
// The server works on Linux; the package compiles elsewhere, without it.
//
// # Files
//
//	config, protocol, memory, errors     what both sides agree on
//	server, serve, account               applications come to the server
//	engine, app, frames                  its loop, and what it knows of each
//	dial, endpoint, keep                 the application's side
package device
