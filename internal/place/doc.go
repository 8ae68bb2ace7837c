// Package place has the ways to where an object lives. By name: the claim of a lane in a directory
// ([Claim]). Over a unix socket, whatever is handed out there: who is at the other end
// and whether that process has died ([MeetPeer], [CheckPeer]), and an accept that a context ends
// ([Accept]).
package place
