// Package netif knows how network interfaces are, and hears of it when that changes. A [Watcher]
// tells what happens to an interface: carrier, MTU, addresses, groups, the XDP program, queues, and
// whether it is there at all. A [Table] answers how packets get from it to an address: the next hop
// and its hardware address, the source address, and how long a packet may be.
//
//	watcher         table, ask
//	         loop
//	        kernel
//
// Both stand on one loop: a socket in the network namespace on which the kernel tells of changes,
// and a worker that asks. News only say where to look, since they are old when they are read: how
// things are is what the kernel answers to a question. So nobody has to know which of two messages
// is newer, and if news are lost everything is asked for again. Only of an interface that was
// removed the word is enough. Sockets, requests and their answers are those of
// github.com/vishvananda/netlink.
//
// # Watching
//
// A Watcher compares what is with what was told and tells the difference, so nothing grows while
// an event is not taken: later, how things are then is told. What came and went meanwhile is not
// told, with the exception that a removed interface stays removed.
//
// The kernel does not tell of all programs that come and go, nor of the number of queues, so these
// are looked at each [WatchOptions.Poll] as well, which takes two system calls.
//
// # Ways
//
// Lookup never waits: for a destination that is new it returns packet.ErrResolving, has the kernel
// asked, and has the answer some time later. Users keep headers made from a [packet.Hop] for as
// long as [Table.Generation] stands still, which is one load; when it moved they look up again, and
// make new headers if Hop.Generation moved too.
//
// # Who resolves
//
// The kernel does. It owns the neighbour table, sends ARP and neighbour solicitations, and hears
// the answers, which the steering program leaves to it. That needs an address on the interface. It
// does not see the packets that leave by AF_XDP, so the table tells it of destinations in use now
// and then (NTF_USE): else it would forget them. Without CAP_NET_ADMIN it cannot be told, and only
// neighbours that the kernel knows for other reasons are found.
//
// # The interface
//
// Routes that leave by another interface are an error, since packets put into our device would not
// take them. Multicast and broadcast destinations always leave by ours.
//
// If frames carry a VLAN tag that the application writes itself, the addresses and neighbours are
// those of the VLAN interface on top of the device: open the table on that one (eth0.10) and the
// socket on the device (eth0). Its hardware address and MTU are the ones that tagged frames need.
//
// # Limits
//
// The kernel chooses a route by destination alone here: rules that look at marks, ports or source
// addresses are not taken into account. Of several next hops of one route it picks one. A path MTU
// that the kernel learnt is found when the route is asked for again, each [TableOptions.Refresh]:
// the kernel tells nobody of it.
//
// The package works on Linux; elsewhere it compiles, and Watch and OpenTable return an
// error that wraps errors.ErrUnsupported.
package netif
