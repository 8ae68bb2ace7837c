package fabric

// ring is a queue that grows to what is needed once.
type ring[T any] struct {
	of      []T
	head, n int
}

// at returns the i-th from the oldest.
func (r *ring[T]) at(i int) *T { return &r.of[(r.head+i)&(len(r.of)-1)] }

// push makes room for one more and returns it, as it was left.
func (r *ring[T]) push() *T {
	if r.n == len(r.of) {
		of := make([]T, max(16, 2*r.n))
		for i := range r.n {
			of[i] = *r.at(i)
		}
		r.of, r.head = of, 0
	}
	r.n++
	return r.at(r.n - 1)
}

// pop gives the oldest up.
func (r *ring[T]) pop() {
	r.head = (r.head + 1) & (len(r.of) - 1)
	r.n--
}
