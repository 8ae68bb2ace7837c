package cq

import "errors"

// Published returns how many entries were ever published through a lane: the index after the last
// one. Whoever knows under which index a writer that died was about to publish, see [Writer.Next],
// learns from it whether that came about. A lane that nobody has attached yet is fs.ErrNotExist.
// It may be called from anywhere.
func (q *Queue) Published(lane int) (uint64, error) {
	if lane < 0 || lane >= q.opt.rows() {
		return 0, refuse("look at lane of", q.name, "lane", lane, q.opt.MaxLanes, ErrInvalid)
	}
	if !q.guard.enterAny() {
		return 0, ErrClosed
	}
	defer q.guard.leaveAny()
	obj, own := q.obj, false
	if lane > 0 {
		var err error
		if obj, err = q.home.openLane(lane); err != nil {
			return 0, failed("look at lane of", q.name, err)
		}
		_, own = q.home.(*dirHome)
	}
	words, err := wordsOf[laneWords](obj, sectLane, uint32(lane))
	var n uint64
	if err == nil {
		n = words.tail.Load()
	}
	if own { // openLane opened it for us
		err = errors.Join(err, obj.Close())
	}
	return n, err
}
