// Package rtnetlink is what packages route and link share: a socket on which the kernel tells of
// changes and answers requests, in one order, and the few messages that they need taken apart.
//
// Whoever asks on the socket that the changes come on needs no thought about which is newer: an
// answer says how things were when it was queued, and what changed since comes after it.
//
// The packages above build requests with github.com/vishvananda/netlink/nl. Messages are parsed
// here because that library takes the kernel at its word: it indexes by lengths that stand in the
// message.
package rtnetlink
