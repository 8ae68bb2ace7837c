package cq

// LoseNotice has the notice of the death of a row's writer not come. It is false as long as there
// is none to lose.
func LoseNotice(q *Queue, bit int) bool {
	q.deaths.mu.Lock()
	r := q.deaths.report
	q.deaths.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.who.(*laneMourner).lanes[bit]
	if w == nil || w.stop == nil {
		return false
	}
	generation := w.watched
	w.rest()
	w.watched = generation
	return true
}
