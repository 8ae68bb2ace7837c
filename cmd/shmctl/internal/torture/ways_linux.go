package torture

import (
	"bytes"
	"errors"
	"os"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/fabric"
)

// How a message goes is in its number, as what it is: copied, by reference, or as a write of memory
// of its receiver with data; with a level and a fence. What each promises beside the order:
//
//	match        who is told that has seen the message, or has a receive that can have it
//	a level      memory of the message may change: its receiver, or who reads a loan, never sees it
//	fence        all that was sent before in the talk has ended
//	write        who is told finds it seen, as a message
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
		return manner{how: wayWrite}
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
	early  bool // it was given up when the send was accepted: others have it then
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
		m.Buf, m.Flags, m.Tag = nil, cq.FlagRemoteCQData, 0
		if at.Key = e.key(to, endKey); at.Key != 0 {
			at.Offset = uint64(e.Index) * partBytes
			m.Buf = e.part(to, at.Key, m.Data)
			e.wrote, e.last = fabric.Remote{}, 0
		}
	}
	return at, nil
}

// free gives memory of a send up that has ended.
func (e *talker) free(s *sent) {
	if s.pooled && !s.early {
		e.giveUp(s)
	}
}

// freeEarly does so when it was accepted.
func (e *talker) freeEarly(s *sent) {
	if s.early {
		e.giveUp(s)
	}
}

func (e *talker) giveUp(s *sent) {
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
