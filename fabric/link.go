package fabric

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/retry"
	"github.com/shmring/shmring/shm"
)

// MaxConnData is how many bytes of its own each side can send with a request, an acceptance or a
// rejection (FI_OPT_CM_DATA_SIZE).
const MaxConnData = 128

// askBytes is what a request says beside that: an address and a window.
const askBytes = AddressBytes + 8

// link is what an endpoint of type MSG has beside others: one connection, and so one peer. A conn
// makes and ends that, as it does for a net.Conn, and carries nothing else: messages go from
// endpoint to endpoint. Who holds the lock of a mux may take an endpoint's, never in reverse.
type link struct {
	news
	c    *conn  // under both locks
	data []byte // of the peer's answer

	// Under the endpoint's lock.
	is   linkState
	addr Address // the peer's
}

type linkState uint8

const (
	linkHeld linkState = iota // messages wait in the store until CONNECTED is queued
	linkUp
	linkDown
)

// news are events, which wait if their queue has no room.
type news struct {
	e       *Endpoint // nil: of a listener
	sink    cq.EventSink
	fid     cq.FID
	mu      sync.Mutex // taken after a mux's lock and before an endpoint's
	owed    []event
	later   retry.Later // delivers them
	release func()
}

type event struct {
	is      cq.EventKind
	failed  cq.Errno // it is an error event
	why     error    // of an error event, if more is known than failed says
	payload []byte
}

// binds makes events those of an object, which holds their queue until release is called.
func (n *news) binds(sink cq.EventSink, class cq.FIDKind, a Address) error {
	n.sink, n.fid = sink, cq.FID{Kind: class, ID: a.Outbox, Generation: a.Generation}
	n.later.First, n.later.Most, n.later.Try = keepAfter, 16*keepAfter, n.redeliver
	n.release = func() {}
	if q, ok := sink.(*cq.EventQueue); ok {
		o := q.Options()
		if need := 16 + askBytes + MaxConnData; !o.Write || !o.Shared || o.DataMaxBytes < need {
			return refuse("bind", "", "Events", o, fmt.Sprintf(
				"Write, Shared and %d DataMaxBytes", need))
		}
	}
	release, err := cq.Hold(sink.(io.Closer))
	if err == nil {
		n.release = func() { n.later.Close(); release() }
	}
	return err
}

// tell queues an event after those that wait. The mux's lock is held.
func (n *news) tell(ev event) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.owed = append(n.owed, ev); len(n.owed) == 1 {
		n.deliver()
	}
}

// redeliver queues those for which there may be room by now.
func (n *news) redeliver(time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.deliver()
}

// forget has nobody hear of those that wait.
func (n *news) forget() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.owed = nil
}

// deliver queues events as far as there is room, and tries again later. A queue that was closed
// gets none. The lock is held.
func (n *news) deliver() {
	for len(n.owed) > 0 {
		ev := &n.owed[0]
		if ev.is == cq.EventShutdown {
			n.e.lower()
			crash.At(crash.LinkLowered)
		}
		if errors.Is(n.write(ev), cq.ErrFull) {
			n.later.Want()
			return
		}
		n.owed = n.owed[1:]
	}
}

// write queues an event. Whoever reads CONNECTED finds the endpoint connected.
func (n *news) write(ev *event) (err error) {
	switch {
	case ev.failed != 0:
		known := ev.failed
		if ev.why != nil {
			known = number(ev.why)
		}
		_, err = n.sink.WriteErr(&cq.EventError{FID: n.fid, Err: ev.failed,
			ProvErrno: int32(known), ErrData: ev.payload})
		return err
	case ev.is == cq.EventConnected:
		n.e.bell.Lock()
		defer n.e.bell.Unlock()
	}
	_, err = n.sink.Write(&cq.Event{Event: ev.is, FID: n.fid, Payload: ev.payload})
	if ev.is == cq.EventConnected && !errors.Is(err, cq.ErrFull) {
		crash.At(crash.LinkRaised)
		n.e.raise()
	}
	return err
}

// entry is the payload of a connection event, which is never too long.
func entry(c cq.CMEntry) []byte {
	b, _ := c.AppendTo(nil)
	return b
}

// raise has messages go, after CONNECTED was queued. The endpoint's lock is held.
func (e *Endpoint) raise() {
	if l := e.link; l.is == linkHeld && !e.closed {
		l.is = linkUp
		e.rematch()
		e.flush()
	}
}

// lower ends receives that wait. What had been sent comes first.
func (e *Endpoint) lower() {
	e.bell.Lock()
	defer e.bell.Unlock()
	if e.closed || e.link.is == linkDown {
		return
	}
	e.pollAll()
	e.link.is = linkUp
	e.rematch()
	e.link.is = linkDown
	e.posted.CancelAll()
	e.flush()
	e.makeRoom() // who waits to send finds that it is over
}

// owes reports whether receives wait for something else than messages.
func (e *Endpoint) owes() bool {
	return e.posted.Owes() || e.link != nil && e.link.is == linkHeld
}

// unlinked says why an endpoint of type MSG sends nothing now.
func (e *Endpoint) unlinked() bool { return e.link != nil && e.link.is != linkUp }

// strange reports whether an endpoint takes nothing from an address: it has another peer.
func (l *link) strange(a Address) bool { return l != nil && l.addr != a }

// Passive takes requests for connections under a name, and reports each by an event (fid_pep).
type Passive struct{ l *listener }

// ListenEvents takes requests for connections to a name in a directory (fi_passive_ep, fi_pep_bind,
// fi_listen), which [Endpoint.Connect] in processes of the same user makes. Each is an EventConnReq
// with the FID of the Passive, which [Passive.Request] reads. 128 wait for an answer; more are
// rejected without an event. Events that find no room in the queue wait.
//
// events is an [*cq.EventWriter], or an [*cq.EventQueue] that was opened with Write and Shared. It
// cannot be closed before Passive.Close. Errors are EADDRINUSE if a living process has the name,
// and those of [Open].
func ListenEvents(d *shm.Dir, name string, events cq.EventSink) (*Passive, error) {
	if kind.Absent(events) {
		return nil, refuse("listen", name, "Events", nil, "a queue")
	}
	l, err := listen(d, name, events)
	if err != nil {
		return nil, fault("listen", name, err)
	}
	return &Passive{l}, nil
}

// FID returns the identifier by which events mean it.
func (p *Passive) FID() cq.FID { return p.l.news.fid }

// Close rejects the requests that have no answer, without data. Connections stay.
func (p *Passive) Close() error {
	if p.l.Close() == nil {
		p.l.news.release()
	}
	return nil
}

// Request is somebody who wants a connection (fi_info with its handle). It is answered once: by
// [Endpoint.Accept] of an endpoint that was opened with it in Options.Request, or by Reject.
type Request struct {
	From   Address // the endpoint that asks
	Window int     // its Options.Window
	Data   []byte  // what came with the request
	l      *listener
	number uint64
}

// Request returns the request that an event of the Passive's is about. [ErrCorrupt]: it is no such
// event.
func (p *Passive) Request(ev *cq.Event) (*Request, error) {
	c, err := cq.ParseCMEntry(ev.Payload)
	if err != nil || ev.Event != cq.EventConnReq || ev.FID != p.FID() || len(c.Info) < askBytes+8 {
		return nil, fault("request", p.l.m.e.name, ErrCorrupt)
	}
	r := &Request{l: p.l, Data: bytes.Clone(c.Data), number: binary.LittleEndian.Uint64(c.Info),
		Window: int(binary.LittleEndian.Uint64(c.Info[8+AddressBytes:]))}
	r.From, err = ParseAddress(c.Info[8 : 8+AddressBytes])
	return r, err
}

// Reject refuses the request, and sends data with that (fi_reject). Errors are those of Accept.
func (r *Request) Reject(data []byte) error {
	return r.answer("reject", data, func(c *conn) error {
		crash.At(crash.LinkRejecting)
		c.m.say(c.p, connReject|c.to, 0, data)
		c.m.free(c)
		return nil
	})
}

// answer takes a request out of the backlog.
func (r *Request) answer(op string, data []byte, do func(c *conn) error) (err error) {
	m := r.l.m
	m.e.bell.Lock()
	defer m.e.bell.Unlock()
	if m.listener == r.l {
		m.e.poll() // who asked may have gone
	}
	c := m.conns[r.number]
	switch {
	case len(data) > MaxConnData:
		err = ErrTooLong
	case m.listener != r.l:
		err = os.ErrClosed
	case c == nil || c.is != connAsked:
		err = ErrNotFound
	case c.err != nil:
		m.free(c)
		err = c.err
	default:
		err = do(c)
	}
	if err != nil {
		return fault(op, m.e.name, err)
	}
	return nil
}

// Accept accepts the request that the endpoint was opened for, and sends data with that
// (fi_accept). EventConnected follows when the peer knows; an error event with ECONNABORTED if it
// has closed meanwhile. Errors: ECONNABORTED: who asked has gone; [ErrNotFound]: the request has
// its answer; [ErrTooLong]; os.ErrClosed: the endpoint or the Passive is closed; [ErrNotSupported]
// without Options.Request.
func (e *Endpoint) Accept(data []byte) error {
	if e.link == nil || e.opt.Request == nil {
		return ErrNotSupported
	}
	return e.opt.Request.answer("accept", data, func(c *conn) error {
		if err := e.pair(c, e.opt.Request.From); err != nil {
			return err
		}
		c.is = connOffered
		crash.At(crash.LinkAccepting)
		c.m.say(c.p, connAccept|c.to, c.number, append(e.addr.Append(nil), data...))
		return nil
	})
}

// Connect asks the Passive that has a name in the endpoint's directory for a connection, and sends
// data with that (fi_connect). The answer is an EventConnected with the data of Accept, or an error
// event with ECONNREFUSED and the data of Reject, without data if the backlog is full or the
// Passive is closed; after it Connect can be called again. ProvErrno is EBADMSG, or another number,
// if the memory with the answer cannot be mapped. Close ends the wait.
//
// Errors: ECONNREFUSED: nobody listens; EISCONN: the endpoint is or was connected, or asks already;
// cq.ErrFull: it has no room for one more peer until it notices who has gone; [ErrTooLong];
// os.ErrClosed; [ErrNotSupported] without Options.Events; those of [Open].
func (e *Endpoint) Connect(name string, data []byte) error {
	switch {
	case e.link == nil || e.opt.Request != nil:
		return ErrNotSupported
	case len(data) > MaxConnData:
		return ErrTooLong
	}
	m, err := dialMux(e.dir)
	if err != nil {
		return fault("connect", name, err)
	}
	m.e.bell.Lock()
	p, err := m.reach(name)
	if err == nil {
		c := m.newConn(p, connAsking)
		if err = e.pair(c, Address{}); err == nil {
			text := binary.LittleEndian.AppendUint64(e.addr.Append(nil), uint64(e.opt.Window))
			crash.At(crash.LinkAsking)
			m.say(p, connAsk, c.number, append(text, data...))
		} else {
			m.free(c)
		}
	}
	m.e.bell.Unlock()
	m.unpin()
	if err != nil {
		return fault("connect", name, err)
	}
	return nil
}

// pair gives an endpoint its connection.
func (e *Endpoint) pair(c *conn, peer Address) error {
	e.bell.Lock()
	defer e.bell.Unlock()
	switch {
	case e.closed || e.link.is == linkDown:
		return errClosed
	case e.link.c != nil:
		return os.NewSyscallError("connect", syscall.EISCONN)
	}
	e.link.c, c.link = c, e.link
	e.partner(peer)
	return nil
}

// partner has messages go to one peer, and come from it.
func (e *Endpoint) partner(a Address) {
	if e.link.addr = a; a != (Address{}) {
		e.insert(e.peerOf(a))
	}
}

// Shutdown ends the connection, after what was sent (fi_shutdown). Receives that wait end with
// ECANCELED, and so do those that are posted later and find no message. Both sides have an
// EventShutdown then. Nothing is sent any more. ErrNotConnected: there is no connection.
func (e *Endpoint) Shutdown() error {
	c := e.conn(false)
	if c == nil {
		return ErrNotConnected
	}
	c.m.e.bell.Lock()
	defer c.m.e.bell.Unlock()
	if c.is != connOpen || c.said || c.err != nil {
		return ErrNotConnected
	}
	crash.At(crash.LinkShutting)
	c.last()
	e.lower()
	return nil
}

// conn returns the connection of an endpoint, which may get none any more.
func (e *Endpoint) conn(over bool) *conn {
	if e.link == nil {
		return nil
	}
	e.bell.Lock()
	defer e.bell.Unlock()
	if over {
		e.link.is = linkDown
	}
	return e.link.c
}

// disconnect ends the connection of an endpoint that closes, or its wait for one. Nobody hears of
// it there.
func (e *Endpoint) disconnect() {
	c := e.conn(true)
	if c == nil {
		return
	}
	defer c.m.leave()
	c.m.e.bell.Lock()
	defer c.m.e.bell.Unlock()
	c.link.forget()
	crash.At(crash.LinkLeaving)
	if !c.closed {
		c.close()
	}
}

// requested tells of a request.
func (l *listener) requested(c *conn, ask []byte) {
	c.is = connAsked
	crash.At(crash.LinkRequested)
	info := binary.LittleEndian.AppendUint64(nil, c.number)
	l.news.tell(event{is: cq.EventConnReq, payload: entry(cq.CMEntry{
		Info: append(info, ask[:askBytes]...), Data: ask[askBytes:]})})
}

// asksLink reports whether a request, which is private, is for an endpoint.
func asksLink(ask []byte) bool {
	if len(ask) < askBytes || len(ask) > askBytes+MaxConnData {
		return false
	}
	_, err := ParseAddress(ask[:AddressBytes])
	window := binary.LittleEndian.Uint64(ask[AddressBytes:])
	return err == nil && window <= mostConnWindow
}

// withdrawn takes notice that a peer waits no more for the answer to a request, which it gets: its
// number is free then. An answer may be under way already.
func (m *mux) withdrawn(p *peer, number uint64) (ok bool) {
	for c := range p.conns {
		if c.is == connAsked && c.to == number && c.err == nil {
			c.fail(syscall.ECONNABORTED)
			crash.At(crash.LinkWithdrawn)
			return m.say(p, connReject|number, 0, nil)
		}
	}
	return number&connWhat == 0
}

// accepted takes the peer's answer.
func (l *link) accepted(here []byte) (ok bool) {
	here = bytes.Clone(here)
	if len(here) < AddressBytes || len(here) > AddressBytes+MaxConnData {
		return false
	}
	a, err := ParseAddress(here[:AddressBytes])
	if err != nil {
		return false
	}
	l.data = here[AddressBytes:]
	l.e.bell.Lock()
	defer l.e.bell.Unlock()
	if !l.e.closed {
		l.e.partner(a)
		crash.At(crash.LinkPaired)
	}
	return true
}

// connected tells of a connection.
func (l *link) connected() {
	crash.At(crash.LinkConnected)
	l.tell(event{is: cq.EventConnected, payload: entry(cq.CMEntry{Data: l.data})})
	l.data = nil
}

// ended tells of its end, by the state that it had.
func (l *link) ended(c *conn) {
	switch {
	case c.closed:
	case c.is == connOpen:
		l.tell(event{is: cq.EventShutdown, payload: entry(cq.CMEntry{})})
	case c.is == connAsking:
		l.e.bell.Lock()
		l.c = nil
		l.e.bell.Unlock()
		data := l.data
		l.data = nil
		l.tell(event{failed: cq.Errno(syscall.ECONNREFUSED), why: c.err, payload: data})
	default:
		l.tell(event{failed: cq.Errno(syscall.ECONNABORTED)})
	}
}
