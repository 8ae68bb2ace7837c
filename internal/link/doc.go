// Package link watches one network interface: carrier, MTU, hardware and IP addresses, the XDP
// program attached to it, how many queues it has, and whether it is there at all.
//
// A [Watcher] compares what is with what was told and tells the difference, so nothing grows while
// nobody listens: whoever listens again learns how things are now. What came and went meanwhile is
// not told, with the exception that a removed interface stays removed.
//
// The kernel tells of most changes. It does not tell of all programs that come and go, nor of the
// number of queues, so these are looked at each [Options.Poll] as well, which takes two system
// calls.
//
// [Options.OnLocal] gets what xdp.Program.SetLocal wants: the interface's own addresses and groups,
// as they come and go.
//
// The package works on Linux; elsewhere it compiles, and Watch returns an error that wraps
// errors.ErrUnsupported.
package link
