package kind

import (
	"github.com/shmring/shmring/doorbell"
	"github.com/shmring/shmring/shm"
)

// The bell of a reading process is an object of its own, beside the queues: one futex word that its
// wait sets and completion channels sleep on, and a bit for each of their members.
const (
	SectBellArm   shm.SectionKind = 0x200 + iota // owner-written: the armed word
	SectBellHints                                // producer-written
)

const (
	AttrBellBits = 0
	// DomainBits is how many members all sets and channels of one process can have together.
	DomainBits = 1 << 14
)

// BellAttributes describes the attributes of a bell.
var BellAttributes = Attributes{{"bits", Exactly(DomainBits), "members that it has a bit for"}}

// BellSpec is the layout of a bell.
func BellSpec() shm.Spec {
	hints := doorbell.DomainBytes(DomainBits)
	s := shm.Spec{Kind: shm.KindBell, Sections: []shm.Section{
		{Kind: SectBellArm, Length: QueueBytes, ElemSize: QueueBytes, Capacity: 1,
			LayoutHash: LayoutVersion},
		{Kind: SectBellHints, Length: hints, ElemSize: hints, Capacity: 1,
			LayoutHash: LayoutVersion}}}
	s.Attrs[AttrBellBits] = DomainBits
	return s
}

// BellMemory lays the words over a bell object. A producer may write the hints only.
func BellMemory(obj *shm.Object, producer bool) (*doorbell.Arm, *doorbell.Hints, error) {
	mem, _, err := obj.Section(SectBellArm, 0)
	if err != nil {
		return nil, nil, err
	}
	arm, err := doorbell.ArmAt(mem, 0)
	if err != nil {
		return nil, nil, err
	}
	if producer {
		mem, err = obj.MapWritable(SectBellHints, 0)
	} else {
		mem, _, err = obj.Section(SectBellHints, 0)
	}
	if err != nil {
		return nil, nil, err
	}
	hints, err := doorbell.MapDomain(mem, DomainBits)
	return arm, hints, err
}
