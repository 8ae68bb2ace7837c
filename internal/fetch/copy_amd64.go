//go:build !race

package fetch

import "golang.org/x/sys/cpu"

//go:noescape
func move(to, from *byte, n uintptr)

// enough is from how many bytes on the instruction is of use.
const enough = 4 << 10

// Copy is the built-in copy, for memory that another processor has read last. One instruction that
// is told the whole length overwrites lines without asking for what they held. Otherwise that takes
// most of the time. The runtime does so on Intel's processors alone.
func Copy(to, from []byte) int {
	n := min(len(to), len(from))
	if n < enough || !cpu.X86.HasERMS {
		return copy(to, from)
	}
	move(&to[0], &from[0], uintptr(n))
	return n
}
