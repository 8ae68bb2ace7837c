// Package place has the ways to where an object lives. By name: the claim of a lane in a directory
// ([Claim]). Over a unix socket, whatever is handed out there: who is at the other end and whether
// that process has died ([MeetPeer], [CheckPeer]), an accept that a context ends ([Accept]), and
// what is said there ([Protocol], [Conversation]): whatever a peer does is a message or an error,
// in the time that it is given, and leaves no descriptor behind.
package place
