// Package soak runs torture and hostile in turns, for long, with faults of the machine on top.
//
// A run is rounds. In each, processes of the library are killed and stopped as package torture does
// it, for most of the round. For the rest they are attacked as package hostile does it, one surface
// after the other. Both prove by accounts of their own that nothing is lost. Rounds differ in which
// roles of torture take part: every sixth has all of them, another one all of one user, and the
// others those whose steps killed least often in the rounds before, if there are steps. While
// processes are killed something is done to the machine below the processes, one thing after the
// other, each to one of them or to all:
//
//	freeze   one is frozen by its control group for some tenths of a second, which no process can
//	         notice, and which is not death
//	signals  every thread of one gets signals as fast as they can be sent: system calls end early
//	starve   as many threads as there are processors do nothing but compute, so that everybody is
//	         late for everything
//
// What cannot be done on a machine is said in the report: freezing needs control groups and root,
// hostile peers need root.
//
// The seed replays the choices of the parts, round by round, not the schedule: those of steps and
// of roles with the same deaths before. The report says what each round played.
package soak
