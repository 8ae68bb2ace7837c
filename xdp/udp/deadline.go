package udp

import (
	"sync"
	"time"
)

// deadline is a moment that may be moved while others wait for it.
type deadline struct {
	mu    sync.Mutex
	timer *time.Timer
	over  chan struct{} // closed when the moment has come
}

// wait returns a channel that is closed when the moment comes. It stays right when the moment is
// moved before that, so it is to be asked for anew only after it was closed.
func (d *deadline) wait() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.channel()
}

func (d *deadline) channel() chan struct{} {
	if d.over == nil {
		d.over = make(chan struct{})
	}
	return d.over
}

// set moves the moment; the zero time means never. A moment that is past ends all waits.
func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil && !d.timer.Stop() {
		<-d.over // the timer has fired and needs no lock to close this
	}
	d.timer = nil
	over := isClosed(d.channel())
	left := time.Until(t)
	switch {
	case t.IsZero():
		if over {
			d.over = make(chan struct{})
		}
	case left > 0:
		if over {
			d.over = make(chan struct{})
		}
		ch := d.over
		d.timer = time.AfterFunc(left, func() { close(ch) })
	case !over:
		close(d.over)
	}
}

func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}
