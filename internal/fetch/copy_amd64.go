//go:build !race

package fetch

import "golang.org/x/sys/cpu"

//go:noescape
func move(to, from *byte, n uintptr)

// enough is from how many bytes on the instruction is of use.
const enough = 4 << 10

// Copy is copy to memory that another processor has read last. One instruction that is told the
// whole length writes lines without asking for what they held, which takes most of the time
// otherwise. The runtime has it for Intel's processors alone.
func Copy(to, from []byte) int {
	n := min(len(to), len(from))
	if n < enough || !cpu.X86.HasERMS {
		return copy(to, from)
	}
	move(&to[0], &from[0], uintptr(n))
	return n
}
