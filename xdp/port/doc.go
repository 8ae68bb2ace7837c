// Package port lets processes of the same user send and receive through an endpoint that another of
// them drives. They need no more than the descriptor of the UMEM, which they map read-only, and two
// queues; they send from memory of their own.
//
//	device process                          application
//	receive ring -> Receive lane ------>    entry refers to the frame, read in place
//	frames       <- Commands <----------    ReturnCommand(&entry)
//	transmit ring <- Commands <---------    SendCommand(context, payload, n, address)
//	completion ring -> Transmit lane -->    entry with the context
//
// One goroutine drives a [Port] with [Port.Run], which sleeps when there is nothing to do, or with
// [Port.Progress]. What finds no room waits where it is: packets in the receive ring, commands in
// their queue. Nothing is taken that cannot be completed.
//
// An application that posts the return before it releases the completion can be killed at any
// moment without a frame being lost: its successor sees the completion again and returns the frame,
// once more perhaps, which is harmless. One that copies completions out leaves what it held; its
// successor posts [ReclaimCommands].
//
// Applications of a port trust each other: each can read all frames, and has them returned if it
// says so. Package device is for those that do not.
package port
