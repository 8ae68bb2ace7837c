package bench

// fill and sum are the work per message, word for word that of testdata/rivals/ring.c: the eight
// words of a completion are written in place and added up in place.

func fill(span []slot, s uint64) {
	for i := range span {
		w := &span[i]
		w[0] = s
		w[1] = 0x0402
		w[2] = 64
		w[3] = 1<<48 + s<<11
		w[4] = ^s
		w[5] = s + 0x7a67
		w[6] = 3
		w[7] = s<<32 + 1
		s++
	}
}

func sum(span []slot) (total uint64) {
	for i := range span {
		w := &span[i]
		total += ((w[0] + w[1]) + (w[2] + w[3])) + ((w[4] + w[5]) + (w[6] + w[7]))
	}
	return total
}
