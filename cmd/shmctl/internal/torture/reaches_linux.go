package torture

import (
	"bytes"
	"encoding/binary"
	"errors"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/fabric"
)

// reach is the talker's memory that peers reach, and what it wrote to theirs.
type reach struct {
	sum, parts *fabric.Region
	calls      uint64
	wrote      fabric.Remote // to which key of which outbox, which stands in Offset
	last       uint64        // and what
}

// share registers memory, before anybody knows the endpoint.
func (e *talker) share() (err error) {
	if e.sum, err = e.Register(8, cq.FlagAtomic); err != nil {
		return err
	}
	wordsOver(e.sum.Bytes())[0].Store(0)
	e.here[endSum].Store(e.sum.Key())
	e.turnOver(true)
	return nil
}

// unshare looks at it for the last time.
func (e *talker) unshare() {
	e.here[endSum].Store(0)
	e.turnOver(false)
	low := e.of.added(e.Address().Outbox, talkAdded)
	is := wordsOver(e.sum.Bytes())[0].Load()
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
		all := wordsOver(r.Bytes())
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
