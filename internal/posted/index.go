package posted

import (
	"math/bits"
	"math/rand/v2"
)

// Key says which messages and receives belong together. That of a message is exact.
type Key struct {
	From   uint64 // who sent the message; Anybody in a receive
	Tag    uint64
	Ignore uint64 // bits of Tag that do not count
}

// Anybody is the source of receives that take messages from whomever.
const Anybody = ^uint64(0)

func (k Key) exact() bool { return k.From != Anybody && k.Ignore == 0 }

// meets reports whether a message and a receive belong together, whichever is which.
func (k Key) meets(o Key) bool {
	return (k.Tag^o.Tag)&^(k.Ignore|o.Ignore) == 0 &&
		(k.From == o.From || k.From == Anybody || o.From == Anybody)
}

// Node is a receive or a message, which an index can hold.
type Node[T any] struct {
	Of T
	Key
	Number uint64 // grows
	links  [2]links[T]
	free   *Node[T]
}

type links[T any] struct{ prev, next *Node[T] }

// Next returns the node that was added behind this one.
func (n *Node[T]) Next() *Node[T] { return n.links[inAll].next }

// Each node is in two lists: of all, and of its hash or of those that are not exact.
const (
	inAll = iota
	inSome
)

type list[T any] struct{ first, last *Node[T] }

func (l *list[T]) add(n *Node[T], in int) {
	n.links[in] = links[T]{prev: l.last}
	if l.last == nil {
		l.first = n
	} else {
		l.last.links[in].next = n
	}
	l.last = n
}

func (l *list[T]) remove(n *Node[T], in int) {
	at := n.links[in]
	if at.prev == nil {
		l.first = at.next
	} else {
		at.prev.links[in].next = at.next
	}
	if at.next == nil {
		l.last = at.prev
	} else {
		at.next.links[in].prev = at.prev
	}
	n.links[in] = links[T]{}
}

// Index holds receives that wait for messages, or messages that wait for receives, in their order.
// The zero value is empty. What is exact is found by a hash that others cannot foresee, since they
// choose the tags.
type Index[T any] struct {
	all    list[T]
	loose  list[T]   // of those that are not exact
	chains []list[T] // of the others, by hash; a power of two of them
	seed   [2]uint64
	n      int
	exact  int
	free   *Node[T]
}

// Len returns how many there are.
func (x *Index[T]) Len() int { return x.n }

// First returns the oldest, or nil.
func (x *Index[T]) First() *Node[T] { return x.all.first }

// New returns a node that is in no index, as Free got it.
func (x *Index[T]) New() *Node[T] {
	n := x.free
	if n == nil {
		return new(Node[T])
	}
	x.free, n.free = n.free, nil
	return n
}

// Free takes a node back that is in no index.
func (x *Index[T]) Free(n *Node[T]) { n.free, x.free = x.free, n }

// Add adds a node behind all others.
func (x *Index[T]) Add(n *Node[T]) {
	x.n++
	x.all.add(n, inAll)
	if n.exact() {
		if x.exact++; x.exact > len(x.chains) {
			x.grow()
		}
	}
	x.some(n).add(n, inSome)
}

// Remove takes a node out.
func (x *Index[T]) Remove(n *Node[T]) {
	x.n--
	x.all.remove(n, inAll)
	x.some(n).remove(n, inSome)
	if n.exact() {
		x.exact--
	}
}

// Find returns the oldest that the key meets, or nil.
func (x *Index[T]) Find(k Key) (found *Node[T]) {
	if !k.exact() {
		return x.search(k)
	}
	if x.exact > 0 {
		for found = x.chain(k).first; found != nil && found.Key != k; {
			found = found.links[inSome].next
		}
	}
	for n := x.loose.first; n != nil && (found == nil || n.Number < found.Number); {
		if n.meets(k) {
			return n
		}
		n = n.links[inSome].next
	}
	return found
}

func (x *Index[T]) search(k Key) *Node[T] {
	n := x.all.first
	for n != nil && !n.meets(k) {
		n = n.links[inAll].next
	}
	return n
}

func (x *Index[T]) some(n *Node[T]) *list[T] {
	if !n.exact() {
		return &x.loose
	}
	return x.chain(n.Key)
}

func (x *Index[T]) chain(k Key) *list[T] {
	high, low := bits.Mul64(k.Tag^x.seed[0], k.From^x.seed[1])
	return &x.chains[(high^low)&uint64(len(x.chains)-1)]
}

// grow makes room for twice as many chains. Nodes go over in their order.
func (x *Index[T]) grow() {
	old := x.chains
	if old == nil {
		x.seed = [2]uint64{rand.Uint64() | 1, rand.Uint64() | 1}
	}
	x.chains = make([]list[T], max(16, 2*len(old)))
	for _, l := range old {
		for n := l.first; n != nil; {
			next := n.links[inSome].next
			x.chain(n.Key).add(n, inSome)
			n = next
		}
	}
}
