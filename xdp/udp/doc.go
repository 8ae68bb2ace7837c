// Package udp is UDP sockets beside the kernel's stack, for programs that know [net.PacketConn]: a
// [Conn] takes the place of a *[net.UDPConn], and the packets take the short way by AF_XDP.
//
//	c, err := udp.Listen(ctx, "eth0", netip.MustParseAddrPort("192.0.2.1:4433"), udp.Options{})
//	listener, err := quic.Listen(c, tlsConfig, nil)
//
// [Listen] and [Dial] do it all for one socket. [Open] returns a [Stack] for many on the same
// interface, and [OpenDevice] one on the interface of a device process, without privilege.
//
// # As with the kernel
//
// Deadlines, Close, addresses, truncation and errors are those of *[net.UDPConn]; a table of cases
// is run on both and compared (TestParity). Errors are *[net.OpError]: [net.ErrClosed],
// [os.ErrDeadlineExceeded] with Timeout, and EMSGSIZE, EADDRINUSE and the like wrapped in
// *[os.SyscallError] under the name of the system call that there would have been. Any number of
// goroutines may read and write at once. Reads and writes do not allocate, in the forms with
// [netip.AddrPort].
//
// Datagrams wait for a reader in the frames that they arrived in, a bounded number for each
// connection: beyond, new ones are dropped and counted, as the kernel does. While all frames that
// may be lent are, a connection keeps up to eight, in copies: one that is read goes on, whatever
// others leave unread.
//
// Next hops come from the kernel's neighbour table. While the kernel resolves one, up to 128
// datagrams are kept for up to three seconds, and dropped if nobody answers: a write never fails
// with EAGAIN. A write does wait, until its deadline, while the device has no room.
//
// The port of a connection is held in the kernel too, by a socket that gets nothing, so that
// everybody there finds it in use. A device process does not do that.
//
// # Not as with the kernel
//
//   - A datagram is one packet. Beyond the MTU of the path a write is EMSGSIZE; there is no
//     fragmentation. Fragments that arrive are the kernel's, and end there.
//   - No ICMP: a port that nobody listens on, or a router that complains, is not heard of. A read
//     or write does not fail with ECONNREFUSED.
//   - Only peers beyond the interface can be reached: addresses of this host cannot, not by
//     loopback either.
//   - Firewall and traffic control of the kernel do not see the packets.
//   - A UDP checksum that covers the pseudo header alone, as veth leaves it, is right on every
//     interface.
//   - A connection on no address, 0.0.0.0 or ::, gets what is for the interface itself: untagged,
//     to its hardware address and one of its addresses, which are followed, or to a group that
//     somebody has joined on it. Broadcast, and what is for addresses of this host's other
//     interfaces, reaches nobody unless Options.Any. One on an address gets what is untagged and
//     for that, whatever the hardware address. A device process decides the same for its
//     programs.
//   - There is no descriptor, hence no SyscallConn, File, or control data: socket options, ECN
//     and packet information, GSO and recvmmsg. quic-go and others ask whether a connection has
//     SyscallConn and do without.
//   - No multicast group can be joined; sending to one works.
//   - IPv4 addresses are never mapped to IPv6, neither in results nor on a connection on ::.
//   - Write buffers cannot be sized by connection. Read buffers count datagrams, not bytes.
//   - A connection that is not used any more must be closed; no finalizer does it.
//
// # Who does the work
//
// Whoever writes gives the packet to the kernel himself, with one system call for all writers that
// come at the same time. Whoever reads looks for packets himself before he waits. He does so for a
// few dozen microseconds, as long as that finds any; he does not with one CPU, nor when as many
// readers of the process as it has CPUs look already. For those that wait one goroutine per queue
// hands out what arrives; it sleeps in the runtime's poller, so that a connection on which nothing
// happens costs neither CPU nor a thread. No poll tells that the device is gone, so the kernel's
// news of its interfaces are followed: reads fail with xdp.ErrDeviceGone then, after what had come;
// the stack is of no more use than to be closed.
//
// # Files
//
//	conn, write       what net.PacketConn has, and datagrams that wait to be read or for a next hop
//	stack             connections by address
//	shard, backend    who looks for datagrams, and what carries them
//	open, options     how all that is opened
package udp
