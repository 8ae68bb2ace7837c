package drive

// Free are the numbers of what is free, as a stack: what was used last is still in the cache. It is
// one goroutine's.
type Free []uint32

// NewFree returns the numbers from 0 to n-1, of which the first is taken first.
func NewFree(n int) Free {
	f := make(Free, n)
	for i := range f {
		f[i] = uint32(n - 1 - i)
	}
	return f
}

// Take takes a number, if there is one.
func (f *Free) Take() (i uint32, ok bool) {
	n := len(*f)
	if n == 0 {
		return 0, false
	}
	i = (*f)[n-1]
	*f = (*f)[:n-1]
	return i, true
}

// Give gives a number back, which must have been taken.
func (f *Free) Give(i uint32) { *f = append(*f, i) }
