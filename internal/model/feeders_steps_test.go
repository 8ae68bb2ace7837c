package model

// feedMove is a step of one reader, from s to n.
type feedMove struct {
	m     feedModel
	s, n  *feedState
	x     *search[feedState]
	j     uint8
	set   bool // it waits on a set
	was   *feedReader
	r     *feedReader // in n
	f     uint8       // the endpoint at hand
	leave bool
}

func (m feedModel) reader(s *feedState, j uint8, x *search[feedState]) {
	x.by(j, s.r[j].at)
	n := x.fork(s)
	v := feedMove{m: m, s: s, n: n, x: x, j: j, set: m.set && j == 1, was: &s.r[j], r: &n.r[j],
		f: s.r[j].f}
	switch at := v.was.at; {
	case at < fRead:
		v.progress()
	case at == fRead:
		v.read()
	case at < fEpochX:
		v.park()
	case at < fSleep:
		v.arm()
	case at < fLeave:
		v.sleep()
	default:
		v.depart()
	}
	if v.leave { // it calls again, or never
		x.by(j, fGone)
		g := x.fork(n)
		g.r[j] = feedReader{gone: true}
		x.emit(g)
		x.by(j, v.was.at)
		*v.r = feedReader{at: fTry}
	}
	x.emit(n)
}

// from goes on with the first endpoint.
func (v *feedMove) from(at step) { v.r.at, v.r.f = at, 0 }

// each goes on with the next endpoint, or after the last one with another step.
func (v *feedMove) each(at, end step) {
	if v.r.f++; v.r.f == v.m.endpoints() {
		v.from(end)
	} else {
		v.r.at = at
	}
}

func (v *feedMove) again() {
	v.r.moved, v.r.lost = false, [2]bool{}
	v.from(fTry)
}

// progress is W1.
func (v *feedMove) progress() {
	f, g := &v.s.f[v.f], &v.n.f[v.f]
	switch v.was.at {
	case fTry:
		v.tryLock(f, g)
	case fTake:
		v.take(f, g)
	case fUnpark:
		g.parked = false
		v.r.at = fExamine
	case fExamine:
		v.examine(f, g)
	case fUnlock:
		g.holder = 0
		if v.each(fTry, fRead); v.was.quit {
			v.from(fRead)
		}
	case fBumpLocked:
		v.n.bump(v.f)
		v.r.at = fWakeLocked
	case fWakeLocked:
		v.m.wake(v.n)
		v.r.at = fUnlock
	}
}

func (v *feedMove) tryLock(f, g *feeder) {
	if bit := uint8(1) << v.f; v.set {
		if v.f == 0 {
			v.n.todo |= v.s.ready
			v.n.ready = 0
		}
		if v.n.todo&bit == 0 {
			v.each(fTry, fRead)
			return
		}
		v.n.todo &^= bit // before it is looked at
	}
	if f.holder != 0 {
		v.r.lost[v.f] = true
		v.each(fTry, fRead)
		return
	}
	if g.holder, v.r.at = v.j+1, fTake; v.m.coarse {
		v.take(f, g)
	}
}

func (v *feedMove) take(f, g *feeder) {
	g.candidate, g.marked = f.candidate || f.marked, false
	if v.r.at = fUnlock; g.candidate {
		v.r.at = fUnpark
	}
}

// examine takes one message, if there is room for what it becomes.
func (v *feedMove) examine(f, g *feeder) {
	v.r.at = fUnlock
	if f.tail == f.examined {
		return
	}
	to := v.m.to(v.f, f.examined)
	if v.m.full(v.s, v.f, to) {
		g.stalled = uint8(to + 1) // under the lock of the full queue
		return
	}
	g.examined++
	v.n.x[to].entries[v.f]++
	v.r.moved, v.r.at = true, fExamine
	wakes := v.s.x[to].armed && v.m.bug != feedQuietPost
	if v.m.set && to == 1 {
		wakes = false
		if v.j == 0 && v.m.bug != feedSetQuiet {
			v.n.ready |= feedSetQueue
			wakes = v.s.armed
		}
	}
	if wakes {
		v.n.r[to].fresh[feedX], v.n.r[to].asleep = false, false
	}
	if v.m.budget {
		q := v.x.fork(v.n)
		q.r[v.j].quit, q.r[v.j].at = true, fUnlock
		if v.m.bug == feedBumpLocked && f.candidate && f.waiters > 0 {
			q.r[v.j].at = fBumpLocked
		}
		v.x.emit(q)
	}
}

// read is W2, a critical section of the queue's lock.
func (v *feedMove) read() {
	if v.set {
		v.n.todo &^= feedSetQueue // before it is looked at
	}
	x := &v.n.x[v.j]
	switch {
	case x.entries != [2]uint8{}:
		x.entries = [2]uint8{}
		for i := range v.n.f {
			if f := &v.n.f[i]; f.stalled == v.j+1 {
				f.stalled, f.marked = 0, v.m.bug != feedNoMark
			}
		}
		v.from(fLeave)
		v.leave = v.m.bug == feedNoBumpGot
	case v.was.quit:
		v.from(fLeave)
	case v.was.moved:
		if v.set {
			v.n.todo |= 1<<v.m.endpoints() - 1
		}
		v.again()
	default:
		v.from(fPark)
	}
}

// park is W4.
func (v *feedMove) park() {
	f, g := &v.s.f[v.f], &v.n.f[v.f]
	switch v.was.at {
	case fPark:
		switch {
		case f.holder != 0:
			v.r.lost[v.f] = true
			v.each(fPark, fEpochX)
		case !f.candidate:
			v.each(fPark, fEpochX)
		default:
			g.holder, g.parked, v.r.at = v.j+1, true, fLook
		}
	case fLook:
		v.r.at = fParked
		stalled := f.stalled != 0 && v.m.bug != feedStalledWork
		if f.tail == f.examined || stalled || v.m.bug == feedNoParkLook {
			g.candidate = false
			return
		}
		if v.r.moved = true; v.set {
			v.n.todo |= 1 << v.f
		}
	case fParked:
		g.holder = 0
		v.each(fPark, fEpochX)
	}
}

// arm is W5 to W7.
func (v *feedMove) arm() {
	f, g := &v.s.f[v.f], &v.n.f[v.f]
	switch v.was.at {
	case fEpochX:
		switch {
		case v.was.moved:
			v.again()
		case v.m.coarse:
			v.r.fresh = [3]bool{true, true, true}
			v.from(fArmX)
		case v.set:
			v.r.fresh[feedX] = true
			v.from(fArmX)
		default:
			v.r.fresh[feedX] = true
			v.from(fEpochF)
		}
	case fEpochF:
		v.r.fresh[v.f] = true
		v.each(fEpochF, fArmX)
	case fArmX:
		v.n.x[v.j].armed = true
		if v.from(fArmF); v.set {
			v.n.armed = true
			v.from(fLookX)
		}
	case fArmF:
		g.waiters++
		if v.m.bug != feedUnarmed && (v.m.bug != feedSameArming || f.armed == 0) {
			g.armed = newSeq
		}
		v.each(fArmF, fLookX)
	case fLookX:
		v.lookAgain()
	case fLookF:
		v.lookAtEndpoint(f)
	case fEpochLate:
		v.r.fresh, v.r.at = [3]bool{true, true, true}, fSleep
	}
}

func (v *feedMove) lookAgain() {
	if v.set {
		if v.from(fSleep); v.s.ready|v.s.todo != 0 && v.m.bug != feedSetNoLook {
			v.from(fDisarmX)
		}
		return
	}
	if v.from(fLookF); v.s.x[v.j].entries != [2]uint8{} && v.m.bug != feedNoLookX {
		v.from(fDisarmX)
	}
}

// lookAtEndpoint: who holds the lock answers for what there is.
func (v *feedMove) lookAtEndpoint(f *feeder) {
	work := f.holder == 0 && (f.candidate || f.marked)
	switch {
	case v.m.bug == feedStrict:
		work = work || f.marked
	case v.m.bug == feedNoLookF, v.m.bug == feedLoser && v.was.lost[v.f]:
		work = false
	}
	if work {
		v.from(fDisarmX)
		return
	}
	if v.each(fLookF, fSleep); v.r.at == fSleep && v.m.bug == feedLateEpoch {
		v.r.at = fEpochLate
	}
}

// sleep is W8.
func (v *feedMove) sleep() {
	switch v.was.at {
	case fSleep:
		fresh := v.was.fresh[feedX]
		for i := range v.m.endpoints() {
			fresh = fresh && (v.was.fresh[i] || v.set)
		}
		v.r.asleep = fresh
		v.from(fDisarmX)
	case fDisarmX:
		v.disarm()
	case fDisarmF:
		v.disarmEndpoint(v.f)
		v.each(fDisarmF, fTry)
		if v.r.at == fTry && v.was.late {
			v.r.at = fLeave
			v.leave = v.m.bug == feedNoBumpLate
		}
	}
}

func (v *feedMove) disarm() {
	if v.m.deadline && !v.was.late {
		v.x.by(v.j, fDeadline)
		l := v.x.fork(v.s)
		l.r[v.j].late = true
		v.x.emit(l)
		v.x.by(v.j, fDisarmX)
	}
	v.n.x[v.j].armed = false
	if v.set {
		v.n.armed = false
	}
	v.r.fresh, v.r.lost = [3]bool{}, [2]bool{}
	v.from(fDisarmF)
	if !v.set && !v.m.coarse {
		return
	}
	if !v.set {
		for i := range v.m.endpoints() {
			v.disarmEndpoint(i)
		}
	}
	if v.from(fTry); v.was.late {
		v.from(fLeave)
	}
}

// disarmEndpoint is one atomic step, so the last waiter disarms.
func (v *feedMove) disarmEndpoint(i uint8) {
	f := &v.n.f[i]
	if f.waiters--; f.waiters == 0 || v.m.bug == feedFirst {
		f.armed = 0
	}
}

// depart is V1 to V4, without any lock.
func (v *feedMove) depart() {
	f := &v.s.f[v.f]
	next := func() {
		if v.r.f++; v.r.f == v.m.endpoints() {
			v.leave = true
		} else {
			v.r.at = fLeave
		}
	}
	tellsSet := v.m.set && v.m.bug != feedSetByF
	switch v.was.at {
	case fLeave:
		work := f.candidate || f.marked
		if v.m.bug == feedCandidates {
			work = f.candidate
		}
		quiet := v.m.bug == feedNoBump || v.m.bug == feedBumpLocked && v.was.quit
		if v.r.at = fWaiters; !work || quiet {
			next()
		}
	case fWaiters:
		if v.r.at = fBump; tellsSet {
			v.n.ready |= 1 << v.f // whoever leaves tells the set
		}
		if f.waiters > 0 && (v.m.bug != feedUnlessRung || f.rung != f.armed) {
			return
		}
		if v.r.at = fDomain; !tellsSet {
			next()
		}
	case fBump:
		v.n.bump(v.f)
		v.r.at = fWake
	case fWake:
		if v.m.bug != feedEpochOnly {
			v.m.wake(v.n)
		}
		if v.r.at = fDomain; !tellsSet {
			next()
		}
	case fDomain:
		if v.r.at = fDomainE; !v.s.armed {
			next()
		}
	case fDomainE:
		v.n.r[1].fresh[feedX] = false
		v.r.at = fDomainW
	case fDomainW:
		v.n.r[1].asleep = false
		next()
	}
}
