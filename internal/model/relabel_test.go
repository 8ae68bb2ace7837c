package model

// newSeq is a sequence number that nobody has seen yet; relabel makes it small.
const newSeq = 15

// relabel gives the sequence numbers of one bell canonical names. Protocol steps only compare
// them for equality, so runs that differ in how often a bell was armed before become one state,
// and armings need no cap. A rung value that equals no number still held can never match again.
func relabel(armed, rung *uint8, held ...*uint8) {
	var name [newSeq + 1]uint8
	last := uint8(0)
	if *armed != 0 {
		last++
		name[*armed] = last
		*armed = last
	}
	for _, h := range held {
		if *h == 0 {
			continue
		}
		if name[*h] == 0 {
			last++
			name[*h] = last
		}
		*h = name[*h]
	}
	*rung = name[*rung]
}
