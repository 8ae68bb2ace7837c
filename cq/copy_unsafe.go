package cq

import (
	"sync/atomic"
	"unsafe"

	"github.com/shmring/shmring/internal/kind"
)

// bytesOf returns how much of a slot a format takes.
func bytesOf[T Readable]() uintptr {
	var t T
	return unsafe.Sizeof(t)
}

// copyPlain copies the entries of a span up to the first that is not a completion without marks,
// and returns how many. The kind of each is loaded before it is copied; what is copied is what was
// there at that moment, and means nothing to us.
//
// Offsets are counted, since indices would be multiplied by the size for each entry, and the entry
// is copied from slot to slice, since a result would be a copy more.
func copyPlain[T Readable](dst []T, span []Entry) int {
	to, from := unsafe.Pointer(unsafe.SliceData(dst[:len(span)])),
		unsafe.Pointer(unsafe.SliceData(span))
	i, at, slot := 0, uintptr(0), uintptr(0)
	for ; i+3 < len(span); i += 4 { // four have one test, and one after the other if it fails
		e, t := (*[4]Entry)(unsafe.Add(from, slot)), (*[4]T)(unsafe.Add(to, at))
		if ((loadMeta(&e[0])^kindEntry)|(loadMeta(&e[1])^kindEntry)|
			(loadMeta(&e[2])^kindEntry)|(loadMeta(&e[3])^kindEntry))&(kindMask|MetaNoContext) != 0 {
			break
		}
		t[0] = *(*T)(unsafe.Pointer(&e[0])) // one statement each: none goes by the stack
		t[1] = *(*T)(unsafe.Pointer(&e[1]))
		t[2] = *(*T)(unsafe.Pointer(&e[2]))
		t[3] = *(*T)(unsafe.Pointer(&e[3]))
		at += 4 * bytesOf[T]()
		slot += 4 * kind.SlotBytes
	}
	for ; i < len(span); i++ {
		e := (*Entry)(unsafe.Add(from, slot))
		if (loadMeta(e)^kindEntry)&(kindMask|MetaNoContext) != 0 {
			return i
		}
		*(*T)(unsafe.Add(to, at)) = *(*T)(unsafe.Pointer(e))
		at += bytesOf[T]()
		slot += kind.SlotBytes
	}
	return len(span)
}

// copyAs reads a slot in a format, all of which are prefixes of the entry.
func copyAs[T Readable](dst *T, e *Entry) { *dst = *(*T)(unsafe.Pointer(e)) }

// flagsOf returns the flags word of a format that has one.
func flagsOf[T Readable](t *T) *Flags {
	if unsafe.Sizeof(*t) < unsafe.Sizeof(Msg{}) {
		return nil
	}
	return &(*Msg)(unsafe.Pointer(t)).Flags
}

// loadMeta loads the last word of a slot once.
func loadMeta(e *Entry) Meta {
	return Meta(atomic.LoadUint64((*uint64)(unsafe.Pointer(&e.Meta))))
}

// Layouts, and raw values in memory, asserted: an index other than 0 does not compile.
var (
	_ = [1]struct{}{}[unsafe.Sizeof(Entry{})-kind.SlotBytes]
	_ = [1]struct{}{}[unsafe.Offsetof(Entry{}.Meta)-56]
	_ = [1]struct{}{}[unsafe.Sizeof(Tagged{})-unsafe.Offsetof(Entry{}.Src)]
	_ = [1]struct{}{}[ErrDataMaxBytes-kind.ErrorDataBytes]
	_ = [1]struct{}{}[metaMarks-kind.SlotMarks]
	_ = [1]struct{}{}[FormatTagged-kind.MostFormat]
	_ = [1]struct{}{}[OverrunQueue-kind.MayOverrun]
	_ = [1]struct{}{}[Persistent-kind.Persistent]
	_ = [1]struct{}{}[WaitFD-kind.WaitFD]
	_ = [1]struct{}{}[WaitMutexCond-kind.WaitMutexCond]
	_ = [1]struct{}{}[WaitPollFD-kind.WaitPollFD]
	_ = [1]struct{}{}[CrossUser-kind.CrossUser]
	_ = [1]struct{}{}[BytesCounter-kind.MostCounterEvents]
	_ = [1]struct{}{}[AddrOpaque-kind.FormatOpaque]
)
