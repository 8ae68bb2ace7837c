package torture

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cmd/shmctl/internal/wire"
	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/scratch"
	"github.com/shmring/shmring/shm"
)

// site is where the processes of one role write to those of another, of which one reads at a time.
// What of a session is unread when both its writer and the reader that it was with are dead is gone
// with them between users, since its memory was; nothing else may be.
type site struct {
	reader, writer   string // roles
	readers, writers int    // how many of them live at once
	*medium
	// names are of the objects that are read there. Between users memory has no name: each reader
	// comes with an object of its own, and writers go from one to the next.
	names []string
	size  int
	ways  []way
	// also is a queue in which its reader has a lane, to be told deaths there; "" is none. Such a
	// reader is never killed, so that what it is not told was not told.
	also string
	// idle says that its writers have lanes for a moment, and post little.
	idle bool
	// watcher is the role of another one that is told deaths of its reader.
	watcher string
	// How deaths are told; "" is not at all.
	noticeReader, noticeWriter string
	// Where readers and writers die.
	readerSteps, writerSteps string
}

func (b *site) between() bool { return b != nil && b.names == nil }

func (c *child) between() bool { return c.role.site.between() }

// writers of a site are so many at most, that have so many lanes of each object.
const (
	writers  = 4
	maxLanes = 8
)

// Users of the processes between users, who have no name.
const (
	othersReaderUID = 65533
	othersWriterUID = 65534
)

// How readers wait where there is nothing else to choose, and by set or alone between users: their
// threads sleep on words of the writers, or rings come through a pipe, which makes a descriptor
// readable, or through a relay, to one of several goroutines or the bell of the process.
var (
	byItself   = []way{{name: "read", open: (*reading).byRead}}
	acrossWays = []way{{name: "alone", open: (*reading).byRead, toward: "event"},
		{name: "relays", open: (*reading).byRead, toward: "relay event", shared: true},
		{name: "descriptors", open: (*reading).byDescriptor, toward: "pipe event", wait: cq.WaitFD},
		{name: "wait_sets", open: bySet(cq.WaitSetOptions{}), toward: "domain relay event"}}
)

// across is a site between users. Their names begin with a prefix; the last way is its own.
func across(prefix string, b site, last way) *site {
	b.reader, b.writer, b.readers = prefix+"reader", prefix+"writer", 2
	b.noticeReader, b.noticeWriter = b.reader+"-died", b.writer+"-died"
	b.ways = append(slices.Clip(acrossWays), last)
	b.readerSteps += " park-stored arm-stored sleep- meet-sending meet-sent meet-received " +
		"accept-told detach-silenced death- others-heard pipe-emptied relay- domain-"
	b.writerSteps += " attach- stamped publish-stored writer- meet-sending meet-sent " +
		"meet-received follow- death- others-parked others-counted others-piped others-again " +
		"others-woken"
	return &b
}

var (
	queueNamed = &site{reader: "reader", writer: "writer", readers: 2, writers: writers,
		medium: queues, names: []string{"main"}, size: 256, ways: byItself, watcher: "watcher",
		noticeReader: noticeReader, noticeWriter: noticeWriter,
		readerSteps: "claim- adopt- park- arm-stored sleep- take-marks peek- releasing released " +
			"detach-silenced",
		writerSteps: "claim- attach- filled stamped publish- ring- writer-"}
	eventsNamed = &site{reader: "event-reader", writer: "event-writer", readers: 2, writers: 3,
		medium: events, names: []string{"events"}, size: 64, ways: byItself,
		readerSteps: "event-copied event-pinned event-released sleep- adopt-started",
		writerSteps: "event-filled event-published ring-parked ring-woken attach-written " +
			"writer-closing"}
	// Several queues, which one process waits for at once. A writer has one of them at a time.
	setNamed = &site{reader: "set-reader", writer: "set-writer", readers: 1, writers: 3,
		medium: queues, names: []string{"set-0", "set-1", "set-2"}, size: 64, ways: []way{
			{name: "wait sets", open: bySet(cq.WaitSetOptions{}), toward: "domain"},
			{name: "descriptors", open: bySet(cq.WaitSetOptions{Wait: cq.WaitFD}), toward: "domain"},
			{name: "channels", open: (*reading).byChannel, toward: "domain notify"},
			{name: "poll sets", open: (*reading).byPoll}},
		readerSteps: "domain-taken domain-armed domain-sleep domain-woken notify- park- peek-stored",
		writerSteps: "domain-marked domain-rung ring-marked publish-stored ring-parked " +
			"attach-announced"}
	// The watcher is told of each mortal that surely had a lane here, and of each reader that surely
	// had the queue in which it has one.
	watched = &site{reader: "watcher", writer: "mortal", readers: 1, writers: 2, medium: queues,
		names: []string{"watched"}, size: 64, ways: byItself, also: "main", idle: true,
		noticeReader: noticeReader, noticeWriter: noticeWriter,
		writerSteps: "attach-claimed attach-announced writer-"}
	queuesBetween = across("others-", site{writers: 3, medium: queues, size: 128,
		readerSteps: "take-marks peek- releasing released notify-", writerSteps: "filled publish-ended"},
		way{name: "channels", open: (*reading).byChannel, toward: "notify domain relay"})
	eventsBetween = across("others-event-", site{writers: 2, medium: events, size: 64,
		readerSteps: "event-copied event-pinned event-released",
		writerSteps: "event-filled event-published"},
		way{name: "handlers", open: (*reading).byRead, handled: true})
)

// Words of the readers, behind those of what one has at a time. Generations stand for readers
// between users: that of each one's object.
const (
	siteHolder = heldWords + iota // generation of the last object there was, or 0
	siteWay                       // how the last one waits
	sitePlayed                    // turns that read something, by way
)

// readerRole is the role of those who read.
func (b *site) readerRole() *role {
	r := role{name: b.reader, places: b.readers, words: sitePlayed + len(b.ways), site: b,
		with: []string{b.writer}, run: (*child).reads, steps: at(b.readerSteps), safe: b.also != "",
		counts: map[string]int{}}
	for i, w := range b.ways {
		if len(b.ways) > 1 {
			r.counts[w.name] = sitePlayed + i
		}
	}
	if b.also != "" {
		r.with = append(r.with, queueNamed.reader)
	}
	if b.noticeReader != "" {
		r.tells = map[string]string{b.writer: b.noticeReader}
	}
	if b.watcher != "" {
		r.tells[b.watcher] = b.noticeReader
	}
	turns := "adoptions"
	if b.between() {
		turns, r.uid, r.asked = "turns", othersReaderUID, true
		r.lacks = func() error { return scratch.Others(os.TempDir()) }
		r.prepare = func(s *supervisor) (func(), error) {
			return s.shareDir(b.reader, othersReaderUID)
		}
	}
	done := holder(turns, r)
	done.check = b.checkReaders
	return done
}

// writerRole is the role of those who write.
func (b *site) writerRole() *role {
	r := &role{name: b.writer, places: b.writers, site: b, with: []string{b.reader},
		run: (*child).writes, steps: at(b.writerSteps), stops: true, asked: b.between(),
		// Behind the sessions it says of each lane which one has it.
		words:  sessionsLength(b.writers) + len(b.names)*maxLanes,
		counts: map[string]int{"calms": sessionsLength(b.writers) - 1}, calm: calm,
		settled: sessionsSettled, died: b.writerDied, sum: sumSessions, check: checkSessions}
	if b.noticeWriter != "" {
		r.tells = map[string]string{b.reader: b.noticeWriter}
	}
	if b.between() {
		r.uid = othersWriterUID
	}
	return r
}

// writerDied notes what is left to be read, and has everybody keep still now and then: then no
// successor and no later post looks where the reader should have looked.
func (b *site) writerDied(s *supervisor, p *proc) error {
	s.ledger.sessions(b.writer).died(p)
	if p.left.want == 0 || s.frozen != nil { // a reader that is stopped sees nothing
		return nil
	}
	if s.rnd.IntN(8) == 0 || !p.shot && afterPublish[p.step] && s.rnd.IntN(2) == 0 {
		return calm(s, p.role)
	}
	return nil
}

// waits says how the reader waits that there is.
func (b *site) waits(l *ledger) string {
	return b.ways[l.region(b.reader)[siteWay].Load()%uint64(len(b.ways))].name
}

// manyTurns are so many turns that each way was taken.
const manyTurns = 2000

func (b *site) checkReaders(s *supervisor, r *role) {
	checkHeld(s, r)
	words := s.ledger.region(b.reader)
	for i, way := range b.ways {
		if words[heldTimes].Load() >= manyTurns && words[sitePlayed+i].Load() == 0 {
			s.broken(b.reader, kindFailed, 1, "in %d turns nobody read anything who waits so: %s",
				words[heldTimes].Load(), way.name)
		}
	}
}

// reading begins one, in a way that leads to the step at which the process is to die.
func (c *child) reading() *reading {
	b := c.role.site
	step, _, _ := strings.Cut(c.Step, "-")
	var at []int
	for i, w := range b.ways {
		if slices.Contains(strings.Fields(w.toward), step) {
			at = append(at, i)
		}
	}
	i := c.rnd.IntN(len(b.ways))
	if len(at) > 0 {
		i = at[i%len(at)]
	}
	j := c.checks()
	j.plays = &c.words[sitePlayed+i]
	return &reading{checker: j, taker: b.take(j), at: i, way: &b.ways[i]}
}

// reads reads at the site whenever nobody else does, until it is done, or leaves it in between.
func (c *child) reads() error {
	return c.withDeaths(func(deaths *cq.EventQueue) error {
		var r *reading
		return c.hold(func(make bool) (held, error) {
			r = c.reading()
			var err error
			if c.between() {
				err = r.takePlace(deaths)
			} else {
				err = r.openNamed(make, deaths)
			}
			if err != nil {
				err = errors.Join(err, r.Detach())
			}
			return r, err
		}, func(running context.Context) (done bool, err error) {
			c.words[siteWay].Store(uint64(r.at))
			c.has(max(r.mine, theOnly))
			c.bound()
			defer c.has(0)
			defer c.unbound()
			return r.drain(running)
		})
	})
}

// openNamed gets all objects of the site, or none.
func (r *reading) openNamed(make bool, deaths *cq.EventQueue) (err error) {
	b := r.role.site
	for _, name := range b.names {
		o, err := r.open(cq.Named(r.dir, name), cq.Options{Existing: !make, Size: b.size,
			MaxLanes: maxLanes, Lifetime: cq.Persistent})
		if err != nil {
			return err
		}
		if r.of = append(r.of, o); deaths != nil {
			err = o.BindEvents(deaths)
		}
		if err != nil {
			return err
		}
	}
	if b.also == "" {
		return nil
	}
	running, stop := r.running(phaseDrain)
	defer stop()
	ctx, cancel := context.WithTimeout(running, patience)
	defer cancel()
	w, err := cq.Attach(ctx, cq.Named(r.dir, b.also), cq.WriterOptions{Wait: true})
	if err == nil {
		r.left = w.Close
		err = w.BindEvents(deaths)
	}
	if running.Err() != nil {
		return nil
	}
	return err
}

// open opens an object of the site, with what belongs to the way.
func (r *reading) open(at cq.Place, o cq.Options) (object, error) {
	o.Shared, o.Wait = r.way.shared, r.way.wait
	return r.role.site.open(r, at, o)
}

// Detach leaves it all to a successor.
func (r *reading) Detach() error { return r.end(object.Detach) }

// Close ends it.
func (r *reading) Close() error { return r.end(object.Close) }

func (r *reading) end(one func(object) error) (err error) {
	for _, o := range r.of {
		err = errors.Join(err, one(o.(object)))
	}
	if r.left != nil {
		err = errors.Join(err, r.left())
	}
	return err
}

// shareDir makes a directory of one user that all others can enter, for a part of the run to meet
// at.
func (s *supervisor) shareDir(of string, uid int) (undo func(), err error) {
	dir, remove, err := scratch.Make(os.TempDir(), toolName+"-"+of)
	if err != nil {
		return func() {}, err
	}
	if err = os.Chown(dir, uid, uid); err != nil {
		err = fmt.Errorf("processes of other users: %w", err)
	} else {
		err = os.Chmod(dir, 0o755)
	}
	s.share[of] = dir
	return remove, err
}

// othersSocket is where the reader of a generation listens.
func (c *child) othersSocket(generation uint64) string {
	return fmt.Sprintf("%s/s%d", c.Share[c.role.site.reader], generation)
}

// takePlace makes an object between users if nobody else has one there, and lets writers follow.
func (r *reading) takePlace(deaths *cq.EventQueue) error {
	lock, err := os.OpenFile(r.Share[r.role.site.reader]+"/lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("at the place: %v", err)
	}
	if unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		return errors.Join(syscall.EBUSY, lock.Close())
	}
	if r.words[heldEnded].Load() != 0 {
		return errors.Join(cq.ErrClosed, lock.Close())
	}
	if err = r.listen(lock, deaths); err != nil { // it is not that somebody has it
		return fmt.Errorf("at the place: %v", err)
	}
	return nil
}

func (r *reading) listen(lock *os.File, deaths *cq.EventQueue) error {
	q, err := r.open(cq.Unnamed("others"), cq.Options{Size: r.role.site.size, Trust: cq.CrossUser,
		MaxLanes: 16, Spin: -1, Allow: &shm.AllowList{UIDs: []int{othersWriterUID}}})
	if err != nil {
		return err
	}
	r.of, r.mine = []cq.Waitable{q}, q.FID().Generation
	l, err := wire.Listen("unix", r.othersSocket(r.mine))
	if err != nil {
		return err
	}
	if err = q.BindEvents(deaths); err != nil {
		return err
	}
	r.holds(r.mine)
	stop := serves(q, l)
	r.left = func() error { return errors.Join(stop(), lock.Close()) }
	return nil
}

// serves has whoever connects attach to an object until stop closes the listener. Peers that are
// killed half way are no news.
func serves(o object, l *net.UnixListener) (stop func() error) {
	ended := make(chan error, 1)
	go func() { ended <- o.Serve(l, nil) }()
	return func() error {
		_ = l.Close()
		if err := <-ended; !errors.Is(err, cq.ErrClosed) && !errors.Is(err, net.ErrClosed) {
			return err
		}
		return nil
	}
}

// holds says that this process has the place, with the queue of a generation.
func (c *child) holds(generation uint64) {
	if former := c.words[siteHolder].Swap(generation); generation <= former {
		c.tell(kindBroken, "generation %d comes after %d", generation, former)
	}
}
