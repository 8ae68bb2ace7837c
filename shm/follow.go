package shm

import (
	"strconv"
	"sync"
)

// followed are the processes whose death somebody in this one wants to hear of: one descriptor and
// one goroutine a process, however many objects it owns that are looked at here.
var followed = struct {
	sync.Mutex
	of map[process]*following
}{of: map[process]*following{}}

// process is what tells one process from all others.
type process struct {
	pid       int
	ns, start uint64
	boot      UUID // zero: this one, or it was not noted
}

func processOf(w Owner) process {
	if w.BootID == Self().BootID {
		w.BootID = UUID{}
	}
	return process{w.PID, w.PIDNS, w.StartTicks, w.BootID}
}

type following struct {
	who process
	end func()               // ends the watch, whose descriptor is closed when it returns
	all map[*subscriber]bool // nil when the process has died; under followed
}

// subscriber is one who is told. The lock is held while he is.
type subscriber struct {
	mu     sync.Mutex
	notify func() // nil when he has stopped, or was told
}

func (s *subscriber) tell() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.notify != nil {
		s.notify()
		s.notify = nil
	}
}

// FollowOwner calls notify once, from another goroutine, when the process of w has died; at once
// if it is dead already. There is no notice of the death of this process, since who follows dies
// with it. It blocks no thread, and all who follow one process share a descriptor. notify must not
// block, since others are told after it. stop ends the subscription: when it returns notify does
// not run and will not, so do not call it from notify. It may be called again.
//
// An error means that there will be no notice, and that the caller must look now and then:
// errors.ErrUnsupported for a process in another PID namespace.
func FollowOwner(w Owner, notify func()) (stop func(), err error) {
	if w.isSelf() {
		return func() {}, nil
	}
	s := &subscriber{notify: notify}
	who := processOf(w)
	followed.Lock()
	defer followed.Unlock()
	f := followed.of[who]
	if f == nil {
		f = &following{who: who, all: map[*subscriber]bool{}}
		if f.end, err = watchDeath(w, f.died); err != nil {
			return nil, named("watch", "process "+strconv.Itoa(w.PID), err)
		}
		followed.of[who] = f
	}
	f.all[s] = true
	return func() { f.leave(s) }, nil
}

// died tells all, each under his own lock: one who stops meanwhile waits for nobody else's notice.
func (f *following) died() {
	followed.Lock()
	all := f.all
	f.all = nil
	delete(followed.of, f.who) // who comes now finds it dead
	followed.Unlock()
	for s := range all {
		s.tell()
	}
}

// leave ends one subscription, and with the last one the watch.
func (f *following) leave(s *subscriber) {
	s.mu.Lock()
	s.notify = nil
	s.mu.Unlock()
	followed.Lock()
	last := f.all[s] && len(f.all) == 1
	delete(f.all, s)
	if last {
		delete(followed.of, f.who)
	}
	followed.Unlock()
	if last {
		f.end()
	}
}
