package cq

import "github.com/shmring/shmring/shm"

// Published returns how many entries were ever published through a lane: the index after the last
// one. Whoever knows under which index a writer that died was about to publish, see [Writer.Next],
// learns from it whether that came about. Nothing of it is checked: a writer may have written
// anything. It may be called from anywhere.
func (q *Queue) Published(lane int) (uint64, error) {
	if lane < 0 || lane >= q.opt.rows() {
		return 0, refuse("look at lane of", q.name, "lane", lane, q.opt.MaxLanes, ErrInvalid)
	}
	if !q.guard.enterAny() {
		return 0, ErrClosed
	}
	defer q.guard.leaveAny()
	if lane == 0 {
		return q.publishedIn(q.obj, 0)
	}
	if h, ok := q.home.(*memfdHome); ok {
		h.mu.Lock() // the object is not unmapped meanwhile
		defer h.mu.Unlock()
		if obj := h.lanes[lane].obj; obj != nil {
			return q.publishedIn(obj, lane)
		}
		return q.rows[lane].head.Load(), nil // what was published is read
	}
	obj, err := q.home.openLane(lane)
	if err != nil {
		return 0, failed("look at lane of", q.name, err)
	}
	defer obj.Close()
	return q.publishedIn(obj, lane)
}

func (q *Queue) publishedIn(obj *shm.Object, lane int) (uint64, error) {
	words, err := wordsOf[laneWords](obj, sectLane, uint32(lane))
	if err != nil {
		return 0, err
	}
	return words.tail.Load(), nil
}
