package cq

func copySources(src []Addr, span []Entry) int {
	n := min(len(src), len(span))
	for i := range n {
		src[i] = span[i].Src.Addr()
	}
	return n
}

// copyEntries copies one span, with marks, up to what is not a completion.
func copyEntries[T Readable](q *Queue, l *lane, dst []T, src []Addr, span []Entry,
	redelivered bool) (n int, stop bool) {
	if !redelivered {
		n = copyPlain(dst[:len(span)], span)
	}
	for i := n; i < len(span); i++ {
		e := &span[i]
		m := loadMeta(e)
		if m&kindMask != kindEntry {
			q.notEntry(l, m)
			stop = true
			break
		}
		copyAs(&dst[i], e)
		if redelivered || m&MetaNoContext != 0 {
			markEntry(&dst[i], m, redelivered)
		}
		n++
	}
	if src != nil {
		copySources(src[:n], span)
	}
	return n, stop
}

// markEntry sets this library's flags in formats that have flags.
func markEntry[T Readable](t *T, m Meta, redelivered bool) {
	f := flagsOf(t)
	if f == nil {
		return
	}
	if redelivered {
		*f |= FlagRedelivered
	}
	if m&MetaNoContext != 0 {
		*f |= FlagNoContext
	}
}
