// Package demo is the program behind "shmctl demo": a frame on the wire becomes a completion in
// another process, and a send of that process becomes a frame on the wire.
//
//	peer                    device process                    application
//	kernel UDP socket       AF_XDP socket, frames             its own completion queue
//	  | datagrams  -- veth -->  posts  -- lane, bell -->  reads payload in place, returns frame
//	  | verifies   <-- veth --  sends  <-- lane, bell --  posts sends, reads completions
//
// The supervisor, which is the process that the user started, makes two network namespaces
// without names, starts the three others and adds up what they report. A child ends when its
// standard input does, so that nothing outlives the supervisor, however it died. Without the
// privilege for that, a producer process stands in for device and wire, with its payloads in shared
// memory of its own; the application is the same.
package demo
