package udp

// inbox is the datagrams that wait for a reader of one connection. It grows as needed, up to what
// its owner allows.
type inbox struct {
	items []item // a power of two
	head  int
	n     int
}

// item is a loan and the shard that it is to be given back to.
type item struct {
	d     datagram
	shard *shard
}

func (b *inbox) push(d *datagram, s *shard) {
	if b.n == len(b.items) {
		grown := make([]item, max(16, 2*len(b.items)))
		for i := range b.n {
			grown[i] = *b.at(i)
		}
		b.items, b.head = grown, 0
	}
	it := b.at(b.n)
	it.d, it.shard = *d, s
	b.n++
}

func (b *inbox) at(i int) *item { return &b.items[(b.head+i)&(len(b.items)-1)] }

// first is the oldest; the pointer is good until pop or push.
func (b *inbox) first() *item { return b.at(0) }

func (b *inbox) pop() {
	b.head = (b.head + 1) & (len(b.items) - 1)
	b.n--
}
