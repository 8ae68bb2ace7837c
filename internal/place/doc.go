// Package place has what meetings over a unix socket share, whatever is handed out there: who is at
// the other end and whether that process has died ([MeetPeer], [CheckPeer]), and an accept that a
// context ends ([Accept]).
package place
