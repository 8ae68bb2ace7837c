package doorbell

import (
	"os"
	"slices"
	"sync/atomic"
)

// keeper is the goroutine that stands between the domain's futex, which is all that producers ring,
// and the descriptors of sets and channels. It waits as a set does, S1 and S3 to S7, and hands on
// what it takes; whoever puts something on the list of a set whose descriptor is lowered raises
// it. While it sleeps it holds a thread. It looks at no member.
type keeper struct {
	descriptors int
	stop        atomic.Bool
	done        chan struct{}
}

func (k *keeper) run(d *Domain) {
	defer close(k.done)
	w := Wait{Stop: k.stop.Load}
	for !k.stop.Load() {
		d.take()
		d.sleep(nil, w)
	}
}

// describe gives a set or channel its descriptor.
func (d *Domain) describe(x *watcher) (*Face, error) {
	d.mu.Lock()
	face, closed := x.desc, x.closed
	d.mu.Unlock()
	if face != nil {
		return face, nil
	}
	if closed {
		return nil, os.ErrClosed
	}
	d.member.Lock()
	defer d.member.Unlock()
	d.mu.Lock()
	face, closed = x.desc, x.closed
	d.mu.Unlock()
	if face != nil {
		return face, nil
	}
	if closed {
		return nil, os.ErrClosed
	}
	face, err := NewFace(-1)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	x.desc = face
	d.mu.Unlock()
	if d.keeper == nil {
		d.keeper = &keeper{done: make(chan struct{})}
		go d.keeper.run(d)
	} else {
		d.Kick() // its second look did not know of this one's members
	}
	d.keeper.descriptors++
	return face, nil
}

// undescribe closes the descriptor; the keeper leaves with the last one. Domain.member is held.
func (d *Domain) undescribe(x *watcher) {
	d.mu.Lock()
	face := x.desc
	x.desc, x.lowered = nil, false
	d.mu.Unlock()
	if face == nil {
		return
	}
	face.Close()
	k := d.keeper
	if k.descriptors--; k.descriptors > 0 {
		return
	}
	k.stop.Store(true)
	d.Kick()
	<-k.done
	d.keeper = nil
}

// leave takes a set or channel from the domain and wakes those who wait on it.
func (d *Domain) leave(x *watcher) {
	d.mu.Lock()
	x.closed = true
	d.watchers = slices.DeleteFunc(d.watchers, func(y *watcher) bool { return x == y })
	d.mu.Unlock()
	d.Kick()
}
