package torture

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
)

// A place between users: writers of one user follow the readers of another, who come and go there,
// each with a queue of its own. What of a session is unread when both its writer and the reader
// that it was with are dead is gone with them, since its memory was; nothing else may be.

// Users of the processes, who have no name.
const (
	othersReaderUID = 65533
	othersWriterUID = 65534
)

// between is such a place.
type between struct {
	reader, writer string // roles
	share          string // what children are told: the directory where readers listen
	// How deaths are told.
	noticeReader, noticeWriter string
	ways                       [othersWays]way // how readers wait
	// toward are those of the ways in which they come to steps whose names begin so; to others
	// they come in every way.
	toward map[string][]int
	// open makes a queue, and follow attaches to the first reader.
	open    func(c *child, at int) (*reading, othersHeld, error)
	follow  func(*child, context.Context) (lane, error)
	writers int
	// Where readers and writers die beside where all do.
	readerSteps, writerSteps string
}

// How a reader waits for writers of another user for as long as it has the place.
const (
	othersAlone  = iota // in a read: its thread sleeps on words of the writers
	othersShared        // in a read as one of several goroutines: a relay passes rings on
	othersFD            // on the descriptor, which pipes of lanes make readable
	othersSet           // in a wait set, on the bell of the process, through a relay
	othersLast          // of queues on a channel, likewise; of event queues in a handler
	othersWays
)

// othersMany are so many turns that each way was taken.
const othersMany = 2000

// There is one for queues and one for event queues, which are those of the event queue that has a
// name, and so are their events. Readers peek at an event, look at it, and take it then; or a
// handler looks at it.
var (
	queuesBetween = newBetween("others-", way{"channels", (*reading).byChannel}, between{
		toward: map[string][]int{"pipe": {othersFD}, "notify": {othersLast},
			"domain": {othersSet, othersLast}, "relay": {othersShared, othersSet, othersLast}},
		open: (*child).othersQueue, follow: (*child).othersFollow, writers: othersWriters,
		readerSteps: "take-marks peek- releasing released notify-",
		writerSteps: "filled publish-ended"})
	eventsBetween = newBetween("others-event-", way{"handlers", (*reading).byHandler}, between{
		toward: map[string][]int{"pipe": {othersFD}, "domain": {othersSet},
			"relay": {othersShared, othersSet},
			"event": {othersAlone, othersShared, othersFD, othersSet}},
		open: (*child).othersEvents, follow: (*child).othersFollowEvents,
		writers:     othersEventWriters,
		readerSteps: "event-copied event-pinned event-released",
		writerSteps: "event-filled event-published"})
)

// newBetween names what belongs to a place by how its names begin.
func newBetween(prefix string, last way, b between) *between {
	b.reader, b.writer, b.share = prefix+"reader", prefix+"writer", prefix+"place"
	b.noticeReader, b.noticeWriter = b.reader+"-died", b.writer+"-died"
	b.ways = [othersWays]way{{"alone", (*reading).byRead}, {"relays", (*reading).byRead},
		{"descriptors", (*reading).byDescriptor}, {"wait_sets", (*reading).bySet}, last}
	return &b
}

// Words of the readers, behind those of what one has at a time: the place. Generations stand for
// readers: that of each one's queue.
const (
	othersHolder = heldWords + iota // reader: generation of the last queue at the place, or 0
	othersBy                        // reader: how it waits
	othersPlayed                    // reader: turns that read something, by way of waiting

	othersReaderWords = othersPlayed + othersWays
)

const (
	othersReaders      = 2
	othersWriters      = 3
	othersEventWriters = 2
	othersSize         = 128
)

// readerRole is the role of those who come and go.
func (b *between) readerRole() *role {
	r := holder("turns", role{name: b.reader, counts: countWays(othersPlayed, b.ways[:]...),
		places: othersReaders, words: othersReaderWords, uid: othersReaderUID, between: b, asked: true,
		with: []string{b.writer}, run: (*child).othersRead,
		steps: at(b.readerSteps + " park-stored arm-stored sleep- meet-sending meet-sent " +
			"meet-received accept-told detach-silenced death- others-heard pipe-emptied relay- domain-"),
		prepare: b.prepare, lacks: lacksOthers, tells: map[string]string{b.writer: b.noticeReader}})
	r.possession, r.check = b.readerHas, b.checkReaders
	return r
}

// writerRole is the role of those who follow.
func (b *between) writerRole() *role {
	return posting(role{name: b.writer, places: b.writers, uid: othersWriterUID, between: b,
		asked: true, with: []string{b.reader}, run: (*child).othersWrite,
		steps: at(b.writerSteps + " attach- stamped publish-stored writer- meet-sending meet-sent " +
			"meet-received follow- death- others-parked others-counted others-piped " +
			"others-again others-woken"),
		tells: map[string]string{b.reader: b.noticeWriter}})
}

func lacksOthers() error {
	if os.Geteuid() != 0 {
		return errors.New("only root can start processes of other users")
	}
	return nil
}

// prepare makes the directory where readers listen and writers find them.
func (b *between) prepare(s *supervisor) (undo func(), err error) {
	dir, err := os.MkdirTemp("", "torture-others-")
	if err != nil {
		return nil, err
	}
	undo = func() { _ = os.RemoveAll(dir) }
	s.share[b.share] = dir
	if err = os.Chown(dir, othersReaderUID, othersReaderUID); err != nil {
		return undo, fmt.Errorf("processes of other users: %w", err)
	}
	return undo, os.Chmod(dir, 0o755)
}

// readerHas: the place, and the writers that were with it.
func (b *between) readerHas(s *supervisor, p *proc) func() string {
	place, holder := heldPossession(s, p), &s.ledger.region(b.reader)[othersHolder]
	had := holder.Load()
	if place == nil || s.has(p) != had {
		return nil
	}
	return func() string {
		if lost := place(); lost != "" || holder.Load() != had {
			return "another reader got its place"
		}
		for _, q := range s.procs { // of a former reader one may not have noticed the end yet
			if q.role.name == b.writer && s.has(q) > had {
				return fmt.Sprintf("writer %d went to another reader", q.index)
			}
		}
		return ""
	}
}

// waits says how the reader waits that there is; nothing without a place between users.
func (b *between) waits(l *ledger) string {
	if b == nil {
		return ""
	}
	return ", waits by " + b.ways[l.region(b.reader)[othersBy].Load()%othersWays].name
}

func (b *between) checkReaders(s *supervisor, r *role) {
	checkHeld(s, r)
	words := s.ledger.region(b.reader)
	for i, way := range b.ways {
		if words[heldTimes].Load() >= othersMany && words[othersPlayed+i].Load() == 0 {
			s.broken(b.reader, kindFailed, 1, "in %d turns nobody read anything who waits so: %s",
				words[heldTimes].Load(), way.name)
		}
	}
}

// othersHeld is a queue or an event queue.
type othersHeld interface {
	FID() cq.FID
	BindEvents(cq.EventSink) error
	Serve(*net.UnixListener, func(error)) error
	Detach() error
	Close() error
}

// othersSocket is where the reader of a generation listens.
func (c *child) othersSocket(generation uint64) string {
	return fmt.Sprintf("%s/s%d", c.Share[c.role.between.share], generation)
}

// othersRead reads at the place whenever nobody else does, until everything is read.
func (c *child) othersRead() error {
	b := c.role.between
	lock, err := os.OpenFile(c.Share[b.share]+"/lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close()
	// Where it cannot enter: bells have no name then, as nothing that is between users has.
	if err := os.Setenv(shm.EnvDir, c.Base+"/"+queuesDir); err != nil {
		return err
	}
	told := func(p cq.PeerEntry) { c.notice(b.noticeWriter, p) }
	return c.reads(told, func(_ bool, deaths *cq.EventQueue) (*reading, held, error) {
		if unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
			return nil, nil, syscall.EBUSY
		}
		if c.words[heldEnded].Load() != 0 {
			return nil, nil, errors.Join(cq.ErrClosed, unix.Flock(int(lock.Fd()), unix.LOCK_UN))
		}
		r, a, err := c.takePlace(lock, deaths)
		if err != nil { // it is not that somebody has it
			return nil, nil, fmt.Errorf("at the place: %v", err)
		}
		return r, a, nil
	})
}

// othersListen listens for those who follow to a generation.
func (c *child) othersListen(generation uint64) (*net.UnixListener, error) {
	killed, err := filepath.Glob(c.Share[c.role.between.share] + "/s*")
	if err != nil {
		return nil, err
	}
	for _, path := range killed {
		_ = os.Remove(path)
	}
	path := c.othersSocket(generation)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o666); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// atPlace is a reader's time with the place.
type atPlace struct {
	q      othersHeld
	lock   *os.File
	l      *net.UnixListener
	served chan error
}

// takePlace makes a queue at the place, which this process has, and lets writers follow.
func (c *child) takePlace(lock *os.File, deaths *cq.EventQueue) (*reading, *atPlace, error) {
	b := c.role.between
	way := c.rnd.IntN(othersWays)
	step, _, _ := strings.Cut(c.Step, "-")
	if toward := b.toward[step]; toward != nil {
		way = toward[c.rnd.IntN(len(toward))]
	}
	r, q, err := b.open(c, way)
	if err != nil {
		return nil, nil, err
	}
	r.way, r.mine, r.plays = b.ways[way], q.FID().Generation, &c.words[othersPlayed+way]
	a := &atPlace{q: q, lock: lock, served: make(chan error, 1)}
	if a.l, err = c.othersListen(r.mine); err != nil {
		return nil, nil, err
	}
	if err = q.BindEvents(deaths); err != nil {
		return nil, nil, err
	}
	c.words[othersBy].Store(uint64(way))
	c.holds(r.mine)
	go func() { a.served <- q.Serve(a.l, nil) }() // peers that are killed half way are no news
	return r, a, nil
}

// holds says that this process has the place, with the queue of a generation.
func (c *child) holds(generation uint64) {
	if former := c.words[othersHolder].Swap(generation); generation <= former {
		c.tell(kindBroken, "generation %d comes after %d", generation, former)
	}
}

// Detach leaves the queue to a successor.
func (a *atPlace) Detach() error { return a.leave(a.q.Detach()) }

func (a *atPlace) Close() error { return a.leave(a.q.Close()) }

// leave gives the place up; err is of the end of the queue.
func (a *atPlace) leave(err error) error {
	_ = a.l.Close()
	if e := <-a.served; !errors.Is(e, cq.ErrClosed) && !errors.Is(e, net.ErrClosed) {
		err = errors.Join(err, e)
	}
	return errors.Join(err, unix.Flock(int(a.lock.Fd()), unix.LOCK_UN))
}

// othersQueue makes a queue.
func (c *child) othersQueue(at int) (*reading, othersHeld, error) {
	o := cq.Options{Size: othersSize, Trust: cq.CrossUser, MaxLanes: 16, Spin: -1,
		Allow: &shm.AllowList{UIDs: []int{othersWriterUID}}, Shared: at == othersShared}
	if at == othersFD {
		o.Wait = cq.WaitFD
	}
	q, err := cq.Create(cq.Unnamed("others"), o)
	return c.queues(way{}, q), q, err
}

// othersEvents makes an event queue.
func (c *child) othersEvents(at int) (*reading, othersHeld, error) {
	r := c.events()
	o := cq.EventOptions{Size: eventSize, Trust: cq.CrossUser, MaxLanes: 16, Spin: -1,
		Allow: &shm.AllowList{UIDs: []int{othersWriterUID}}, DataMaxBytes: eventPayload,
		Shared: at == othersShared}
	switch at {
	case othersFD:
		o.Wait = cq.WaitFD
	case othersLast:
		events := r.taker.(*eventTaker)
		events.ended, o.Handler = make(chan error, 1), events.handle
	}
	e, err := cq.CreateEvents(cq.Unnamed("others"), o)
	r.of = []cq.Waitable{e}
	return r, e, err
}

// link is a writer, with one reader after the other where they are of another user.
type link[W interface {
	ReaderGone() <-chan struct{}
	BindEvents(cq.EventSink) error
	Follow(context.Context, *net.UnixConn) (W, error)
	Close() error
}] struct {
	c    *child
	w    W
	with uint64 // generation of the reader
}

// meet tries until somebody is there.
func (l *link[W]) meet(ctx context.Context, with func(*net.UnixConn) (W, error)) error {
	for {
		conn, generation, err := l.c.othersDial(ctx)
		if err == nil {
			var w W
			w, err = with(conn)
			_ = conn.Close() // the writer has its own
			if err == nil {
				l.w, l.with = w, generation
				return nil
			}
			if !passing(err) {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w; the last try: %w", ctx.Err(), err)
		case <-time.After(time.Millisecond):
		}
	}
}

// passing tells errors of a reader that is gone or going. One that is told to be gone and then to
// live is not among them.
func passing(err error) bool {
	var lives *shm.BusyError
	if errors.As(err, &lives) {
		return false
	}
	return isAny(err, cq.ErrPeerGone, cq.ErrClosed, cq.ErrLanes, cq.ErrTimedOut, shm.ErrStale,
		cq.ErrBusy, syscall.EPIPE, syscall.ECONNRESET)
}

func (l *link[W]) generation() uint64               { return l.with }
func (l *link[W]) ReaderGone() <-chan struct{}      { return l.w.ReaderGone() }
func (l *link[W]) BindEvents(to cq.EventSink) error { return l.w.BindEvents(to) }
func (l *link[W]) Close() error                     { return l.w.Close() }

func (l *link[W]) Renew(ctx context.Context) error {
	return l.meet(ctx, func(conn *net.UnixConn) (W, error) { return l.w.Follow(ctx, conn) })
}

// first attaches to whoever reads.
func (l *link[W]) first(ctx context.Context,
	attach func(context.Context, cq.Place, cq.WriterOptions) (W, error)) error {
	return l.meet(ctx, func(conn *net.UnixConn) (W, error) {
		return attach(ctx, cq.Over(conn), cq.WriterOptions{Trust: cq.CrossUser,
			Allow: &shm.AllowList{UIDs: []int{othersReaderUID}}})
	})
}

// othersDial connects to the reader that there is, and says which one that is.
func (c *child) othersDial(ctx context.Context) (*net.UnixConn, uint64, error) {
	generation := c.ledger.region(c.role.between.reader)[othersHolder].Load()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", c.othersSocket(generation))
	if err != nil {
		return nil, 0, err
	}
	return conn.(*net.UnixConn), generation, nil
}

// othersFollow attaches to whoever reads.
func (c *child) othersFollow(ctx context.Context) (lane, error) {
	l := &queueLane{link[*cq.Writer]{c: c}}
	return l, l.first(ctx, cq.Attach)
}

// othersFollowEvents attaches to whoever reads events.
func (c *child) othersFollowEvents(ctx context.Context) (lane, error) {
	l := &eventLane{link: link[*cq.EventWriter]{c: c}}
	return l, l.first(ctx, cq.AttachEvents)
}

// othersWrite follows readers and posts, session after session, until it is told to stop. It is
// told of a death at once, and not only when the next one is there.
func (c *child) othersWrite() error {
	b := c.role.between
	return c.posts(func(p cq.PeerEntry) { c.notice(b.noticeReader, p) },
		func(ctx context.Context, _ uint64) (lane, error) { return b.follow(c, ctx) })
}

// at notes with what reader the lane is now.
func (p *poster) at(generation uint64) {
	p.s.reader.Store(generation)
	p.has(generation)
}

// renew goes on with the next reader.
func (p *poster) renew() error {
	p.ledger.word(wordHad + p.Place).Store(p.s.reader.Load())
	p.has(0)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := p.lane.Renew(ctx); err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			p.tell(kindHung, "no reader to follow for %v: %v", patience, err)
			return errGaveUp
		}
		return fmt.Errorf("renew: %w", err)
	}
	p.at(p.lane.generation())
	return nil
}
