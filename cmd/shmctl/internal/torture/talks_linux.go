package torture

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math/bits"
	"os"
	"sync/atomic"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/fabric"
	"github.com/shmring/shmring/internal/kind"
)

// Words of the role: counts, then some for each place, then talks.
const (
	endSent       = iota // messages
	endDone              // of them completed
	endFailed            // ended with an error
	endSeen              // were received
	endCut               // receives that a death or a close cut short
	endOpened            // endpoints
	endNoRoom            // talks that ended for want of a row or a place
	endCalms             // how often everything was seen
	endEchoed            // connections of which all came back
	endReset             // that a death or a close cut short
	endLinked            // connections by events that went as was asked for
	endUnlinked          // that a death or a close cut short
	endGrouped           // sends to groups
	endMissed            // messages of these that members were told to have missed
	endMatched           // messages that completed because they have their receive
	endLent              // that were lent to their receiver
	endReferenced        // that were sent by reference
	endReached           // reads and writes of memory of peers, and atomics, without data
	endLasted            // writes of level commit that completed
	endHead

	endHolder  = 0 // outbox of the endpoint that a place has, 0 if it is closing or has none
	endBy      = 1 // and the process that has it
	endOpen    = 2 // its sends that have not ended
	endTalks   = 3 // talks that were begun
	endListens = 4 // odd while its listener is open, and counts these
	endSum     = 5 // key of the word that others add to, as long as that holds; else 0
	endKey     = 6 // the same of the memory in which each place has a part
	endLinks   = 7 // as endListens, of its passive endpoint
	endWaits   = 8 // receives of each kind that may have a message and are not seen

	// By who wrote it: what its file has at least.
	endLasts = endWaits + endKinds
	endPlace = endLasts + endpoints

	// Begun are additions to the receiver's word, added those that completed.
	talkTo, talkFrom, talkIntent, talkBegun, talkAdded, talkDone = 0, 1, 2, 3, 4, 5
	talkSeen                                                     = talkDone + talkMessages/64
	talkWords                                                    = talkSeen + talkMessages/64
)

// talks is the part of the ledger that the role has.
type talks []atomic.Uint64

func (l *ledger) talks() talks { return l.region("endpoint") }

func (t talks) place(i int) []atomic.Uint64 {
	return t[endHead+i*endPlace : endHead+(i+1)*endPlace]
}

func (t talks) at(place int, n uint64) talk {
	at := endHead + endpoints*endPlace + (place*maxTalks+int(n))*talkWords
	return talk(t[at : at+talkWords])
}

// begun is how many talks a place began, within bounds.
func (t talks) begun(place int) uint64 {
	return min(t.place(place)[endTalks].Load(), maxTalks)
}

// of returns the talk of a message, and its place there.
func (t talks) of(id uint64) (talk talk, k int, ok bool) {
	place, n := int(id>>40)-1, id<<24>>24>>talkBits
	if place < 0 || place >= endpoints || n >= t.begun(place) {
		return nil, 0, false
	}
	return t.at(place, n), int(id % talkMessages), true
}

// has returns the place whose endpoint has an outbox, -1 if there is none.
func (t talks) has(outbox uint64) int {
	for i := range endpoints {
		if outbox != 0 && t.place(i)[endHolder].Load() == outbox {
			return i
		}
	}
	return -1
}

// missing returns how many messages that a place sent to an endpoint are done and not seen. Talks
// before from are not looked at.
func (t talks) missing(place int, to, from uint64) (n int) {
	for i := from; i < t.begun(place); i++ {
		if talk := t.at(place, i); talk[talkTo].Load() == to {
			for w := range talkMessages / 64 {
				n += bits.OnesCount64(talk[talkDone+w].Load() &^ talk[talkSeen+w].Load())
			}
		}
	}
	return n
}

type talk []atomic.Uint64

// set sets the bit of a message, and reports whether that was set.
func (t talk) set(first, k int) bool { return t[first+k/64].Or(1<<(k%64))>>(k%64)&1 != 0 }

func (t talk) is(first, k int) bool { return t[first+k/64].Load()>>(k%64)&1 != 0 }

// calmEndpoints is role.calm of endpoints.
func (s *supervisor) calmEndpoints(r *role) error {
	who, t := s.there(r.name), s.ledger.talks()
	return s.silence(r.name, who, func() (missing string, of []*proc) {
		for _, p := range s.procs {
			if _, there := who[p]; !there {
				continue
			}
			here := t.place(p.index)
			of = append(of, p)
			if n := here[endOpen].Load(); n > 0 {
				missing = fmt.Sprintf("%d sends of endpoint %d have not ended", n, p.index)
			}
			for i, from := range s.looked {
				if n := t.missing(i, here[endHolder].Load(), from); n > 0 {
					missing = fmt.Sprintf("%d messages from %d to %d are done and not seen", n, i, p.index)
				}
			}
		}
		if missing == "" {
			for i := range s.looked {
				s.looked[i] = max(t.begun(i), 1) - 1 // the last may go on
			}
			t[endCalms].Add(1)
		}
		return missing, of
	})
}

// How a message goes is in its number, as what it is: copied, by reference, or as a write of memory
// of its receiver with data; with a level and a fence. What each promises beside the order:
//
//	match        who is told that has seen the message, or has a receive that can have it
//	a level      memory of the message may change: its receiver, or who reads a loan, never sees it
//	fence        all that was sent before in the talk has ended
//	write        who is told finds it seen, as a message
//	commit       the supervisor finds it in the file of its receiver, which only a sync fills
//	atomics      completed <= the word of the receiver <= begun, of all additions to it
//	reads        what the place wrote last is there, as long as the key holds
//	revocation   nobody who had an old key writes what a new one reaches
const (
	endPool   = 256 << 10
	endRemote = 64 << 10
	partBytes = 1 << 10 // of each place, so short that the copy stores whole words
	reaches   = 1 << 63 // of a context: no message

	wayText, wayCopy, wayPool, wayWrite = 0, 1, 2, 3

	spoilEarly = "say that a message has its receive when it is delivered"
	spoilAdd   = "count more than was added"
	spoilSync  = "sync nothing"
)

type manner struct {
	how   int
	level cq.Flags
	fence bool
}

func endWay(id uint64) (w manner) {
	x := mix(2, id)
	switch x % 16 {
	case 0, 1, 2:
		w.how = wayCopy
	case 3, 4, 5:
		w.how = wayPool
	case 6:
		if w.how = wayWrite; x>>8%2 == 0 {
			w.level = cq.FlagCommitComplete
		}
		return w
	}
	switch x >> 8 % 8 {
	case 0, 1:
		w.level = cq.FlagMatchComplete
	case 2:
		w.level = cq.FlagDeliveryComplete
	}
	w.fence = x>>16%16 == 0
	return w
}

func (w manner) ordinary() bool { return w == manner{} }

// sent is a send that has not ended, with memory that may change when it has.
type sent struct {
	mem    []byte
	pooled bool
	early  bool           // it was given up when the send was accepted: others have it then
	lasts  *atomic.Uint64 // of the ledger, if it is to last
}

// begun notes a send, or what reaches, before the call.
func (e *talker) begun(context uint64, s *sent, inject bool) {
	e.here[endOpen].Add(1)
	if !inject {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.sends[context] = s
	}
}

// lays makes a message what its way says. Without a key there is no buffer.
func (e *talker) lays(s *sent, m *fabric.Msg, w manner, to uint64) (at fabric.Remote, err error) {
	m.Flags |= w.level
	if w.fence {
		m.Flags |= cq.FlagFence
	}
	if e.Spoil == spoilEarly {
		m.Flags &^= cq.FlagMatchComplete
	}
	switch text := m.Buf; w.how {
	case wayCopy:
		s.mem = append([]byte{}, text...)
		m.Buf = s.mem
	case wayPool:
		mem, err := e.Alloc(max(len(text), 1))
		if errors.Is(err, cq.ErrFull) {
			break
		} else if err != nil {
			return at, err
		}
		e.of[endReferenced].Add(1)
		copy(mem, text)
		*s = sent{mem: mem[:len(text):len(mem)], pooled: true, early: e.rnd.IntN(2) == 0}
		m.Buf = s.mem
	case wayWrite:
		m.Buf, m.Flags, m.Tag = nil, cq.FlagRemoteCQData|w.level, 0
		at = fabric.Remote{Key: e.key(to, endKey), Offset: uint64(e.Index) * partBytes}
		if place := e.of.has(to); place >= 0 && w.level != 0 { // apart from what others change
			at = fabric.Remote{Key: e.key(to, endSum), Offset: at.Offset + partBytes}
			s.lasts = &e.of.place(place)[endLasts+e.Index]
		}
		if at.Key != 0 {
			m.Buf = e.part(to, at.Key, m.Data)
			e.wrote, e.last = fabric.Remote{}, 0
		}
	}
	return at, nil
}

// gives gives memory of a send up that has ended, or, early, one that was accepted.
func (e *talker) gives(s *sent, early bool) {
	if !s.pooled || s.early != early {
		return
	}
	if err := e.Free(s.mem[:cap(s.mem)]); err != nil && !errors.Is(err, os.ErrClosed) {
		e.tell(kindBroken, "free: %v", err)
	}
}

// promised looks at what the completion of a send says.
func (e *talker) promised(id uint64, s *sent, talk talk, k int) {
	way := endWay(id)
	if !s.early && !(s.pooled && e.over) { // the pool is gone after a close
		clear(s.mem)
	}
	for other := range e.sends {
		if way.fence && other < id && other>>talkBits == id>>talkBits {
			e.tell(kindBroken, "%#x, which has a fence, came before %#x", id, other)
		}
	}
	if s.lasts != nil {
		e.of[endLasted].Add(1)
		s.lasts.Store(max(s.lasts.Load(), id))
	}
	to := talk[talkTo].Load()
	at := e.of.has(to)
	if way.level != cq.FlagMatchComplete || at < 0 {
		return
	}
	e.of[endMatched].Add(1)
	if talk.is(talkSeen, k) {
		return
	}
	waits := e.of.place(at)[endWaits:]
	_, flags, tag := endMessage(id)
	n := waits[0].Load()
	if flags&cq.FlagTagged != 0 {
		n = waits[1+tag&1].Load() + waits[endKinds-1].Load()
	}
	if n == 0 && !talk.is(talkSeen, k) && e.of.has(to) == at {
		e.tell(kindBroken, "%#x has its receive, and there is none that is not seen", id)
	}
}

// endLoan is a message that is lent here.
type endLoan struct {
	cq.Entry
	id uint64
}

// lent returns what a receive lends, and keeps that for a while. After a close nobody promises what
// it is.
func (e *talker) lent(c *cq.ErrorEntry) []byte {
	x := endLoan{cq.Entry{Flags: c.Flags, Buf: c.Buf, Len: c.Len}, c.Data}
	got, err := e.Payload(&x.Entry)
	if err != nil || uint64(len(got)) != c.Len {
		e.tell(kindBroken, "loan of %d bytes: %d, %v", c.Len, len(got), err)
	}
	e.of[endLent].Add(1)
	e.loans = append(e.loans, x)
	e.release(6)
	if e.over {
		got, _, _ = endMessage(c.Data)
		got = got[:min(c.Len, uint64(len(got)))]
	}
	return got
}

// release gives loans back but for so many, and looks at them once more.
func (e *talker) release(but int) {
	for len(e.loans) > but {
		x := e.loans[0]
		e.loans = e.loans[1:]
		got, err := e.Payload(&x.Entry)
		if text, _, _ := endMessage(x.id); err == nil && !e.over && !bytes.Equal(got, text) {
			e.tell(kindUnpublished, "%#x changed while it was lent", x.id)
		}
		if err = errors.Join(err, e.Release(x.Entry)); err != nil {
			e.tell(kindBroken, "release: %v", err)
		}
	}
}

// lastly is a file that has what was written when it is synced.
type lastly struct {
	*os.File
	b     []byte
	at    int64
	never bool
}

func (f *lastly) WriteAt(b []byte, at int64) (int, error) {
	f.b, f.at = append(f.b[:0], b...), at
	return len(b), nil
}

func (f *lastly) Sync() error {
	if f.never {
		return nil
	}
	_, err := f.File.WriteAt(f.b, f.at)
	return err
}

func lastFile(base string, place int) string { return fmt.Sprintf("%s/lasting-%d", base, place) }

// lasts looks whether the file of a place, which is dead, has what is known to last there.
func (s *supervisor) lasts(place int) error {
	known := s.ledger.talks().place(place)[endLasts:]
	b, err := os.ReadFile(lastFile(s.base, place))
	if errors.Is(err, fs.ErrNotExist) { // it was killed before
		return nil
	}
	b = append(b, make([]byte, (1+endpoints)*partBytes)...)
	for i := range endpoints {
		id, part := known[i].Load(), b[(1+i)*partBytes:]
		for k := 0; id > 0 && k < partBytes; k += 8 {
			if n := binary.LittleEndian.Uint64(part[k:]) >> 16; n < id || n>>40 != id>>40 {
				s.broken("endpoint", kindLost, 1, "the file of %d has %#x, where %#x is known to last",
					place, n, id)
				break
			}
		}
	}
	return err
}

// reach is the talker's memory that peers reach, and what it wrote to theirs. The first region
// lies at the beginning of the file: the sum, and parts that last. No key of it is revoked.
type reach struct {
	sum, parts *fabric.Region
	calls      uint64
	wrote      fabric.Remote // to which key of which outbox, which stands in Offset
	last       uint64        // and what
}

// share registers memory, before anybody knows the endpoint.
func (e *talker) share() (err error) {
	if e.sum, err = e.Register((1+endpoints)*partBytes, cq.FlagAtomic|cq.FlagRemoteWrite); err != nil {
		return err
	}
	is, err := os.ReadFile(lastFile(e.Base, e.Index))
	if err != nil || !bytes.HasPrefix(e.sum.Bytes(), is) {
		e.tell(kindLost, "what lasts is not there any more: %v", err)
	}
	kind.Overlays[atomic.Uint64](e.sum.Bytes())[0].Store(0)
	e.here[endSum].Store(e.sum.Key())
	e.turnOver(true)
	return nil
}

// unshare looks at it for the last time.
func (e *talker) unshare() {
	e.here[endSum].Store(0)
	e.turnOver(false)
	low := e.of.added(e.Address().Outbox, talkAdded)
	is := kind.Overlays[atomic.Uint64](e.sum.Bytes())[0].Load()
	if high := e.of.added(e.Address().Outbox, talkBegun); is < low || is > high {
		e.tell(kindLost, "%d was added, where %d to %d are", is, low, high)
	}
}

// added sums up what talks to an endpoint added.
func (t talks) added(to uint64, what int) (n uint64) {
	for i := range endpoints {
		for k := range t.begun(i) {
			if talk := t.at(i, k); talk[talkTo].Load() == to {
				n += talk[what].Load()
			}
		}
	}
	return n
}

// turnOver revokes the key of the parts, and may make another one.
func (e *talker) turnOver(again bool) {
	outbox := e.Address().Outbox
	e.here[endKey].Store(0)
	if r := e.parts; r != nil {
		all := kind.Overlays[atomic.Uint64](r.Bytes())
		for i := range all {
			is := all[i].Load()
			if place := i * 8 / partBytes; is != 0 && is&0xffff != partMark(outbox, r.Key(), place) {
				e.tell(kindUnpublished, "%#x is in the part of %d, which knew another key", is, place)
				break
			}
		}
		e.parts = nil
		if err := r.Close(); err != nil {
			e.tell(kindFailed, "revoke: %v", err)
		}
	}
	if !again {
		return
	}
	r, err := e.Register(endpoints*partBytes, cq.FlagRemoteRead|cq.FlagRemoteWrite)
	if err != nil {
		if !errors.Is(err, cq.ErrFull) {
			e.tell(kindFailed, "register: %v", err)
		}
		return
	}
	clear(r.Bytes())
	e.parts = r
	e.here[endKey].Store(r.Key())
}

// partMark is what all words of a part end with.
func partMark(outbox, key uint64, place int) uint64 {
	return mix(outbox<<16^key, uint64(place)) & 0xffff
}

// part is what this place writes to its part.
func (e *talker) part(outbox, key, n uint64) []byte {
	word := binary.LittleEndian.AppendUint64(nil, n<<16|partMark(outbox, key, e.Index))
	return bytes.Repeat(word, partBytes/8)
}

// key returns a key of an endpoint, 0 if there is none now.
func (e *talker) key(outbox uint64, which int) uint64 {
	if at := e.of.has(outbox); at >= 0 {
		return e.of.place(at)[which].Load()
	}
	return 0
}

// written looks at what says that a peer wrote here.
func (e *talker) written(c *cq.ErrorEntry) {
	talk, k, ok := e.of.of(c.Data)
	if !ok || k >= int(talk[talkIntent].Load()) || talk[talkTo].Load() != e.Address().Outbox ||
		endWay(c.Data).how != wayWrite || c.Len != partBytes || c.Err != 0 ||
		c.Flags&^cq.FlagNoContext != cq.FlagRMA|cq.FlagRemoteWrite|cq.FlagRemoteCQData {
		e.tell(kindUnpublished, "nobody wrote %+v here", *c)
		return
	}
	e.saw(c.Data, talk, k)
}

// reaches adds to the word of a peer, or writes its part there, or reads what it wrote. over says
// that it takes no more.
func (e *talker) reaches(talk talk, to cq.Addr) (over bool) {
	outbox := talk[talkTo].Load()
	at := fabric.Remote{Key: e.key(outbox, endKey), Offset: uint64(e.Index) * partBytes}
	x := uint64(1 + e.rnd.IntN(100))
	adds := e.rnd.IntN(2) == 0
	if adds {
		at = fabric.Remote{Key: e.key(outbox, endSum)}
	}
	if at.Key == 0 || e.here[endOpen].Load() > endRoom/2 {
		return false
	}
	e.calls++
	context := reaches | e.calls
	e.begun(context, &sent{}, false)
	var err error
	was := fabric.Remote{Key: at.Key, Offset: outbox}
	switch {
	case adds:
		talk[talkBegun].Add(x)
		err = e.Atomic(&fabric.AtomicMsg{Op: fabric.Sum, Type: fabric.Uint64, Addr: to, At: at,
			Buf: binary.LittleEndian.AppendUint64(nil, x), Context: context})
		if e.Spoil == spoilAdd {
			x *= 2
		}
		if err == nil {
			talk[talkAdded].Add(x)
		}
	case e.wrote == was:
		got := make([]byte, partBytes)
		err = e.Read(got, to, at, context)
		if err == nil && !bytes.Equal(got, e.part(outbox, at.Key, e.last)) {
			e.tell(kindLost, "what was written last is not there, but % x", got[:16])
		}
	default:
		e.wrote, e.last = was, e.calls
		if err = e.Write(e.part(outbox, at.Key, e.last), to, at, context); err != nil {
			e.wrote = fabric.Remote{}
		}
	}
	if e.rnd.IntN(16) == 0 {
		e.wrote = fabric.Remote{}
		e.turnOver(true)
	}
	if err == nil {
		return false
	}
	e.here[endOpen].Add(^uint64(0))
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.sends, context)
	if errors.Is(err, cq.ErrFull) {
		return false
	}
	e.excuseReach(err, outbox, at.Key)
	return true
}

// excuseReach is excuse, of what may be for want of a key too.
func (e *talker) excuseReach(err error, to, key uint64) {
	if !errors.Is(err, fabric.ErrKey) {
		e.excuse(err, to)
	} else if key == e.key(to, endKey) || key == e.key(to, endSum) {
		e.tell(kindUsurped, "key %#x does not hold, though nobody revoked it", key)
	}
}
