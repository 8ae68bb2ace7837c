package model

import "slices"

// calls returns what a process does now, and no verb when it has left.
func (m flowModel) calls(s *flowState, p uint8) (verb byte, op uint8) {
	if i := 3 * int(s.call[p]); i < len(m.programs[p]) {
		return m.programs[p][i], m.programs[p][i+1] - '0'
	}
	return 0, 0
}

func (m flowModel) next(s *flowState, x *search[flowState]) {
	for p := range uint8(3) {
		verb, op := m.calls(s, p)
		if verb == 0 {
			continue
		}
		first, last := op, op
		if p == flowB && s.call[p] < m.anyOrder {
			first, last = 0, m.anyOrder-1
		}
		for op := first; op <= last && verb != '.'; op++ {
			x.by(p, step(slices.Index([]byte(flowVerbs), verb)))
			if n := x.fork(s); (first == last || s.receive[op] == 0) && m.act(n, p, verb, op) {
				n.call[p]++
				x.emit(n)
			}
		}
		m.progress(s, p, x)
	}
}

// act is one call of a program. It is false while the call blocks, or gives EAGAIN.
func (m flowModel) act(n *flowState, p uint8, verb byte, op uint8) bool {
	switch verb {
	case 's':
		return m.send(n, p, op)
	case 'r':
		return m.post(n, p, op)
	case 'S':
		return n.send[op] == ended || m.bug == flowCloseEarly
	case 'R':
		if n.receive[op] >= received && m.bug == flowQueueStores {
			n.call[p]++
			m.matchStored(n, p)
			n.call[p]--
		}
		return n.receive[op] >= received
	case 'c':
		if n.receive[op] == posted || m.bug == flowCancelsAll && n.receive[op] == taken {
			n.posted.remove(op)
			n.receive[op] = canceled
		}
	case 'C':
		if n.send[op] == opened && m.bug == flowEndsAlone {
			n.send[op] = ended
		} else if n.send[op] == opened {
			n.cancel[op] = true
		}
	case 'p', 't', 'd':
		m.peek(n, p, verb, op)
	}
	return true
}

func (m flowModel) send(n *flowState, p, k uint8) bool {
	o := m.sends[k]
	lacks := n.sent[p][o.to] >= n.granted[p][o.to]
	if o.kind == 'k' && !lacks {
		reserve := uint8(1)
		if m.bug == flowNoReserve || m.bug == flowAllChunks {
			reserve = 0
		}
		quota := n.out[p][o.to] == 0 || m.bug == flowNoQuota
		lacks = !quota || m.free(n, p) <= reserve
	}
	record, ring := flowNow|k, &n.lane[p][o.to]
	if lacks || o.kind == 'l' {
		if record = flowHeader | k; m.bug == flowNoHeaders && o.kind != 'l' {
			return false
		}
		if m.bug == flowControl {
			ring = &n.control[p][o.to]
		}
	}
	if !ring.push(record) {
		return false
	}
	if n.send[k] = published; record&flowKind == flowHeader {
		n.send[k], n.header[k] = opened, true
		return true
	}
	n.sent[p][o.to]++
	if o.kind == 'k' {
		n.out[p][o.to]++
	}
	return true
}

// free is how many chunks a pool has left.
func (m flowModel) free(s *flowState, p uint8) uint8 {
	n := uint8(flowChunks)
	for q := range s.out {
		n -= s.out[p][q]
		if m.bug == flowNoReserve || m.bug == flowPoolReserve {
			n -= s.bounce[p][q]
		}
	}
	return n
}

func (m flowModel) fits(r, k uint8) bool {
	o, w := m.sends[k], m.receives[r]
	return o.to == w.at && (w.from == flowAny || w.from == o.from) &&
		(w.tag == flowAny || w.tag == o.tag)
}

// post looks for a stored message first. Its completion is reserved, or it has to try again.
func (m flowModel) post(n *flowState, p, r uint8) bool {
	if m.room > 0 && m.reserved(n, p, posted) >= m.room {
		return false
	}
	found := uint8(flowNone)
	for _, l := range n.store {
		if k := l - 1; l > 0 && m.fits(r, k) && found == flowNone &&
			(n.message[k] == stored || n.message[k] == peeked && m.bug == flowUnmarked) {
			found = k
		} else if l > 0 && m.fits(r, k) && n.message[k] == stored && m.bug == flowNewest {
			found = k
		}
	}
	if found == flowNone {
		n.receive[r] = posted
		n.posted.add(r)
		return true
	}
	if n.message[found] == peeked {
		n.fault = takenByOther
	}
	n.store.remove(found)
	m.match(n, r, found)
	return true
}

// flowNone is no message, or no receive.
const flowNone = 255

// reserved counts the receives of a process that have come so far and were not read.
func (m flowModel) reserved(n *flowState, p uint8, from uint8) (c uint8) {
	read := m.programs[p][:3*n.call[p]]
	for r, w := range m.receives {
		wasRead := false
		for i := 0; i < len(read); i += 3 {
			wasRead = wasRead || read[i] == 'R' && read[i+1] == '0'+byte(r)
		}
		if w.at == p && n.receive[r] >= from && !wasRead {
			c++
		}
	}
	return c
}

// wanted is the receive that gets a message: the one that was posted first.
func (m flowModel) wanted(n *flowState, k uint8) uint8 {
	found := uint8(flowNone)
	for _, l := range n.posted {
		if l == 0 || !m.fits(l-1, k) {
			continue
		}
		wild := m.receives[l-1].tag == flowAny
		if found == flowNone || m.bug == flowWildFirst && wild && m.receives[found].tag != flowAny {
			found = l - 1
		}
	}
	return found
}

// match gives message k to receive r, which is not among the posted any more.
func (m flowModel) match(n *flowState, r, k uint8) {
	for j := range k { // sends have numbers in the order of their sender
		if m.sends[j].from == m.sends[k].from && m.fits(r, j) && n.send[j] != 0 &&
			n.message[j] <= stored {
			n.fault = messageOrder
		}
	}
	for _, l := range n.posted {
		if l > 0 && l-1 == r {
			break
		}
		if l > 0 && m.fits(l-1, k) && n.receive[r] == posted {
			n.fault = receiveOrder
		}
	}
	n.posted.remove(r)
	if n.by[k] = r + 1; !n.header[k] {
		n.message[k], n.word[k], n.receive[r] = delivered, delivered, received
		m.release(n, k)
		return
	}
	n.message[k], n.receive[r], n.clear[k] = matched, taken, true
	if m.bug == flowDropsClear {
		o := m.sends[k]
		n.clear[k] = false
		n.control[o.to][o.from].push(flowClear | k)
	}
}

// release: a message that came at once has left lane and store, so its credit and chunk go back.
func (m flowModel) release(n *flowState, k uint8) {
	o := m.sends[k]
	n.matched[o.from][o.to]++
	if m.bug != flowEarlyCredit {
		n.granted[o.from][o.to]++
	}
	if o.kind == 'k' {
		n.out[o.from][o.to]--
	}
}

// peek looks for message k, after a look at all lanes.
func (m flowModel) peek(n *flowState, p uint8, verb byte, k uint8) {
	for q := range uint8(3) {
		for m.bug != flowPeeksStore && m.examine(n, q, p) {
		}
	}
	switch {
	case n.message[k] != stored && n.message[k] != peeked:
		if n.fault == fine {
			n.fault = unseenByPeek
		}
	case verb == 'p':
		n.message[k] = peeked
	case verb == 't':
		n.store.remove(k)
		m.match(n, uint8(len(m.receives)-1), k)
	default:
		n.store.remove(k)
		n.message[k], n.word[k] = discarded, discarded
		if !n.header[k] {
			m.release(n, k)
		}
	}
}

// held is how many messages that came at once are stored by p.
func (m flowModel) held(n *flowState, p uint8) (c uint8) {
	for _, l := range n.store {
		if l > 0 && m.sends[l-1].to == p && !n.header[l-1] {
			c++
		}
	}
	return c
}

// stalls tells whether a mutant leaves the record at the head of a lane where it is.
func (m flowModel) stalls(n *flowState, q, p, record uint8) bool {
	k := record &^ flowKind
	switch m.bug {
	case flowStops:
		return m.held(n, p) >= flowBudget
	case flowQueueStalls:
		return m.reserved(n, p, received) > 0
	case flowClearWaits:
		return record&flowKind == flowHeader && n.control[p][q][1] != 0
	case flowStorage:
		return record&flowKind < flowData && m.wanted(n, k) == flowNone
	case flowAcksInLane:
		return record&flowKind != flowAck && !n.lane[p][q].push(flowAck|k)
	}
	return false
}

// examine takes the record at the head of the lane from q to p.
func (m flowModel) examine(n *flowState, q, p uint8) bool {
	record := n.lane[q][p][0]
	if record == 0 || m.stalls(n, q, p, record) {
		return false
	}
	n.lane[q][p].pop()
	switch k := record &^ flowKind; record & flowKind {
	case flowNow, flowHeader:
		if n.arrives(m, k); record&flowKind == flowNow {
			n.send[k] = ended // examined
			if m.bug == flowEarlyCredit && n.message[k] == stored {
				n.granted[q][p]++
			}
		}
	case flowData:
		r := n.by[k] - 1
		if n.receive[r] == canceled {
			n.fault = lateData
		}
		n.message[k], n.word[k], n.receive[r] = delivered, delivered, received
		n.bounce[q][p]--
	}
	return true
}

// arrives: a message is matched or stored.
func (n *flowState) arrives(m flowModel, k uint8) {
	if n.message[k] == forewarned {
		n.message[k], n.word[k] = withdrawn, withdrawn
		return
	}
	p := m.sends[k].to
	r := m.wanted(n, k)
	if m.bug == flowQueueStores && m.reserved(n, p, taken) > 0 {
		r = flowNone
	}
	if r != flowNone {
		m.match(n, r, k)
		return
	}
	n.message[k] = stored
	if n.store.add(k); m.held(n, p) > flowBudget {
		n.fault = overBudget
	}
}

// matchStored matches what is stored, as far as a queue of one has room.
func (m flowModel) matchStored(n *flowState, p uint8) {
	for _, l := range n.store {
		if l == 0 || m.sends[l-1].to != p || m.reserved(n, p, taken) > 0 {
			continue
		}
		if r := m.wanted(n, l-1); r != flowNone {
			n.store.remove(l - 1)
			m.match(n, r, l-1)
		}
	}
}

// progress is what a process does while it is in a call, whatever call that is.
func (m flowModel) progress(s *flowState, p uint8, x *search[flowState]) {
	for q := range uint8(3) {
		x.by(p, flowExamines)
		if n := x.fork(s); m.examine(n, q, p) {
			x.emit(n)
		}
		x.by(p, flowControls)
		if n := x.fork(s); s.control[q][p][0] != 0 {
			n.controlled(m, n.control[q][p].pop())
			x.emit(n)
		}
		x.by(p, flowRaises)
		most, may := uint8(2), m.promised(s, p) < flowBudget
		if m.bug == flowOverRaises {
			most, may = 3, true
		}
		if n := x.fork(s); m.raises && may && q != p && s.granted[q][p]-s.matched[q][p] < most {
			n.granted[q][p]++
			x.emit(n)
		}
	}
	for k, o := range m.sends {
		k := uint8(k)
		if n := x.fork(s); o.to == p && s.clear[k] && n.control[p][o.from].push(flowClear|k) {
			x.by(p, flowClears)
			n.clear[k] = false
			x.emit(n)
		}
		if o.from != p {
			continue
		}
		if n := x.fork(s); s.cancel[k] && n.control[p][o.to].push(flowCancel|k) {
			x.by(p, flowTellsOff)
			n.cancel[k] = false
			x.emit(n)
		}
		m.carry(s, p, k, x)
	}
}

// carry is what its sender does for a send by header.
func (m flowModel) carry(s *flowState, p, k uint8, x *search[flowState]) {
	to := m.sends[k].to
	has := s.bounce[p][to] == 0
	if m.bug == flowNoReserve || m.bug == flowPoolReserve {
		has = m.free(s, p) > 0
	}
	if n := x.fork(s); s.send[k] == cleared && has && n.lane[p][to].push(flowData|k) {
		x.by(p, flowSegment)
		n.bounce[p][to]++
		n.send[k] = flying
		x.emit(n)
	}
	x.does(s, p, flowWord, s.word[k] != 0 && s.send[k] >= opened && s.send[k] < ended,
		func(n *flowState) { n.send[k] = ended })
}

// controlled acts on a record of a control ring.
func (n *flowState) controlled(m flowModel, record uint8) {
	switch k := record &^ flowKind; record & flowKind {
	case flowClear:
		if n.send[k] == opened {
			n.send[k], n.cancel[k] = cleared, false
		}
	case flowCancel:
		switch {
		case n.message[k] == stored:
			n.store.remove(k)
			n.message[k], n.word[k] = withdrawn, withdrawn
		case n.message[k] == 0 && m.bug != flowForgets:
			n.message[k] = forewarned
		}
	case flowHeader: // only in a mutant
		n.arrives(m, k)
	}
}

// promised is what all senders together may still send at once.
func (m flowModel) promised(s *flowState, p uint8) (sum uint8) {
	for q := range s.granted {
		sum += s.granted[q][p] - s.matched[q][p]
	}
	return sum
}
