package doorbell

import (
	"testing"

	"github.com/shmring/shmring/ring"
)

// What happens between the look that found nothing and the arming rings nobody, for nobody is
// armed. The second look finds it: the reader does not go to sleep.
func TestSecondLook(t *testing.T) {
	for name, happens := range map[string]func(q *queue, r *reader){
		"a mark":   func(q *queue, _ *reader) { q.writer(0, ring.SeqCst).put(1) },
		"a signal": func(q *queue, _ *reader) { Signal(q.arm, q.hints, nil, nil) },
		"a mark that another goroutine takes": func(q *queue, r *reader) {
			q.writer(0, ring.SeqCst).put(1)
			r.Take()
		},
	} {
		for missing := range uint64(3) {
			q := heapQueue(t, 1)
			r := newReader(q, readerOptions{shared: true})
			r.Take()
			w := Wait{DeadlineNs: Now() + 2e9, Missing: missing, Takes: r.Takes()}
			if more, err := r.Park(); more || err != nil {
				t.Fatal(more, err)
			}
			happens(q, r)
			if r.Sleep(w); r.Sleeps() != 0 {
				t.Errorf("%s, %d entries missing: slept on it", name, missing)
			}
		}
	}
}
