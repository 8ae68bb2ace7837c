//go:build !race

package fetch

import "golang.org/x/sys/cpu"

//go:noescape
func move(to, from *byte, n uintptr)

//go:noescape
func ownAll(p *byte, n uintptr)

// short is up to how many bytes lines are asked for: they come all at once then, and not one after
// the other as stores reach them.
const short = 4 << 10

// Copy is the built-in copy, for memory that another processor has read last. For what is longer
// than short one instruction, which is told the whole length, overwrites lines without asking for
// what they held. Otherwise that takes most of the time. The runtime does so on Intel's processors
// alone.
func Copy(to, from []byte) int {
	n := min(len(to), len(from))
	switch {
	case n == 0:
	case n <= short:
		ownAll(&to[0], uintptr(n))
	case cpu.X86.HasERMS:
		move(&to[0], &from[0], uintptr(n))
		return n
	}
	return copy(to, from)
}
