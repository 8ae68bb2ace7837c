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
// and returns how many. The kind of each is loaded once; what is copied is what was there at that
// moment, and means nothing to us.
//
// Offsets are counted, since indices would be multiplied by the size for each entry, and the entry
// is copied from slot to slice, since a result would be a copy more.
func copyPlain[T Readable](dst []T, span []Entry) int {
	to, from := unsafe.Pointer(unsafe.SliceData(dst[:len(span)])),
		unsafe.Pointer(unsafe.SliceData(span))
	for i, at, slot := 0, uintptr(0), uintptr(0); i < len(span); i++ {
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

// Layouts, and raw values in memory, asserted in both directions.
const (
	_ = uint(unsafe.Sizeof(Entry{}) - kind.SlotBytes)
	_ = uint(kind.SlotBytes - unsafe.Sizeof(Entry{}))
	_ = uint(unsafe.Offsetof(Entry{}.Meta) - 56)
	_ = uint(56 - unsafe.Offsetof(Entry{}.Meta))
	_ = uint(unsafe.Sizeof(Tagged{}) - unsafe.Offsetof(Entry{}.Src))
	_ = uint(unsafe.Offsetof(Entry{}.Src) - unsafe.Sizeof(Tagged{}))
	_ = uint(ErrDataMaxBytes - kind.ErrorDataBytes)
	_ = uint(kind.ErrorDataBytes - ErrDataMaxBytes)
	_ = uint(metaMarks - kind.SlotMarks)
	_ = uint(kind.SlotMarks - metaMarks)
	_ = uint(FormatTagged - kind.MostFormat)
	_ = uint(kind.MostFormat - FormatTagged)
	_ = uint(OverrunQueue - kind.MayOverrun)
	_ = uint(kind.MayOverrun - OverrunQueue)
	_ = uint(Persistent - kind.Persistent)
	_ = uint(kind.Persistent - Persistent)
	_ = uint(WaitFD - kind.WaitFD)
	_ = uint(kind.WaitFD - WaitFD)
	_ = uint(WaitMutexCond - kind.WaitMutexCond)
	_ = uint(kind.WaitMutexCond - WaitMutexCond)
	_ = uint(WaitPollFD - kind.WaitPollFD)
	_ = uint(kind.WaitPollFD - WaitPollFD)
	_ = uint(CrossUser - kind.CrossUser)
	_ = uint(kind.CrossUser - CrossUser)
	_ = uint(BytesCounter - kind.MostCounterEvents)
	_ = uint(kind.MostCounterEvents - BytesCounter)
	_ = uint(AddrOpaque - kind.FormatOpaque)
	_ = uint(kind.FormatOpaque - AddrOpaque)
)
