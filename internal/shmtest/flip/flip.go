// Package flip attacks a call of the library between every two loads that it makes.
//
// A peer that writes shared memory at full speed, from another processor, hardly ever changes a
// word in the few nanoseconds between two loads of it. Here the call is made by a thread of a child
// process that a tracer stops: after every access to the attacked word, which the processor's debug
// registers tell of, or after every instruction. While it is stopped the word gets another value.
// So whether a word that was checked is loaded once more does not depend on luck.
//
// With debug registers every sequence of two values that the first five loads of a call can see is
// tried. Without them, or beside them, the word is flipped after every 2^b instructions, for each b
// in a call of its own: of any two instructions one sees one value and one the other in the call of
// a bit in which their numbers differ. Without them that is done for two words, and for the first
// 256 instructions, and of the scenes of a package only a quarter is attacked, since a step can
// take as long as ten thousand of them: such a machine shows less. A virtual machine may take what
// is written to debug registers and do nothing with it, so each attack asks first.
//
// What a call gives while the word changes has to be what it gives for one of the two values if it
// does not change, or an error that says that the peer is broken.
package flip

import "fmt"

// Word is a word of shared memory that a peer may write.
type Word struct {
	Name  string   `json:"name"`
	Poke  uint64   `json:"poke"`  // an address of the victim's process where it can be written
	Watch []uint64 `json:"watch"` // all addresses that it has there; four at most
	// Index says that only the distance of a value from the honest one counts, which grows.
	Index bool `json:"index"`
}

// Outcome is what came of one call.
type Outcome struct {
	// Shape says what the call returned, without what it copied: how much, or which error.
	Shape string `json:"shape"`
	// Data are words of memory that the call copied: 0 for one that is as an honest peer wrote it.
	Data []uint64 `json:"data"`
	// Poisoned says that the peer was given up with a typed error.
	Poisoned bool `json:"poisoned"`
	// Broken is what must never be: a panic, an error that is not known, harm done to another peer.
	Broken string `json:"broken"`
}

// Stats are what an attack did.
type Stats struct {
	Words    int // of those that the peer may write
	Loaded   int // of these the call loads, as far as that is known
	Calls    int
	Loads    int // of attacked words, in all calls
	Steps    int // instructions after which a call was stopped
	Longest  int // instructions of one call
	Syscalls int // times that a call was stopped for one
	Cut      int // words with more loads, or instructions, than were tried
	Poisoned int // calls that gave the peer up

	Blind bool // debug registers do nothing here
}

func (s *Stats) String() string {
	return fmt.Sprintf("%d words, %d of them loaded; %d calls with %d loads, %d instructions in "+
		"steps (%d in the longest call), %d stops at system calls; %d calls gave the peer up; %d words "+
		"were cut short", s.Words, s.Loaded, s.Calls, s.Loads, s.Steps, s.Longest, s.Syscalls,
		s.Poisoned, s.Cut)
}

// AllValues has a word get every hostile value.
const AllValues = 10
