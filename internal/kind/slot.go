package kind

// Slot is an entry as eight words.
type Slot struct{ Context, Flags, Len, Buf, Data, Tag, Src, Meta uint64 }

// The last word of a slot: the index of its entry in the upper half, and below that what it is and
// the marks of its writer.
const (
	SlotKindMask = 0xff
	SlotEntry    = 1
	SlotError    = 2
	SlotMarks    = 3 << 8
)

// Seq returns the sequence number of an entry.
func (s *Slot) Seq() uint32 { return uint32(s.Meta >> 32) }
