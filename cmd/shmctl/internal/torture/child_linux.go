package torture

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cmd/shmctl/internal/wire"
	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/spin"
	"github.com/shmring/shmring/internal/stage"
	"github.com/shmring/shmring/shm"
)

// config is what a child is started with.
type config struct {
	Index int               `json:"index"` // among the processes of its role
	Place int               `json:"place"` // among all
	Base  string            `json:"base"`  // the directory of the run, which other users cannot enter
	Seed  uint64            `json:"seed"`
	Spoil string            `json:"spoil,omitempty"`
	Step  string            `json:"step,omitempty"` // where it is to die, so that it can go there
	Share map[string]string `json:"share,omitempty"`
	Ends  wire.Ends         `json:"ends"` // of the device and of the wire, if there are
}

// event is a line from a child to the supervisor.
type event struct {
	Role string `json:"role"`
	Kind string `json:"kind"` // what was found, or kindNotice
	N    uint64 `json:"n,omitempty"`
	Text string `json:"text"`
	What string `json:"what,omitempty"` // of a notice: how the death is told
	Pid  int    `json:"pid,omitempty"`
	// Start is when the process began whose death is told, as [cq.PeerEntry] has it.
	Start uint64 `json:"start,omitempty"`
	AtNs  int64  `json:"at_ns,omitempty"`
	// SinceNs is from when on the survivor could be told.
	SinceNs int64 `json:"since_ns,omitempty"`
	// More is how many more died that are told by their number only.
	More uint64 `json:"more,omitempty"`
}

// kindNotice is an event that breaks no promise.
const kindNotice = "notice"

// Directories and files of a run, below its own.
const (
	queuesDir  = "queues"
	ledgerFile = "ledger"
)

// ledgerFd is the descriptor that a child inherits; those of namespaces come behind.
const ledgerFd = 3

// child is one process of a run.
type child struct {
	*stage.Child
	config
	role   *role
	ledger *ledger
	words  []atomic.Uint64 // of the ledger, the role's own
	still  *atomic.Uint64  // of the ledger, see ledger.still
	dir    *shm.Dir        // where queues have names; nil for other users
	pid    int
	// boundNs is since when this process is told of deaths, or was told last.
	boundNs atomic.Int64
	rnd     *rand.Rand
}

// patience is how long anybody waits for anything that must come.
const patience = time.Minute

// Tool is what the processes of a run do.
var Tool = stage.Tool{Name: toolName, Play: func(sc *stage.Child) error {
	c := &child{Child: sc, pid: os.Getpid()}
	if err := c.Script(&c.config); err != nil {
		return err
	}
	// A supervisor that is gone takes everybody along.
	context.AfterFunc(c.Listen(nil), func() { os.Exit(3) })
	before := c.held()
	if err := c.run(); err != nil {
		c.tell(kindFailed, "%v", err)
		return err
	}
	for since := stage.Lifetime(); ; nap(time.Millisecond) {
		left := slices.DeleteFunc(c.held(), func(what string) bool {
			return slices.Contains(before, what)
		})
		if len(left) > 0 && c.role.lingers && stage.Lifetime()-since < patience {
			continue
		}
		for _, what := range left {
			c.tell(kindLeaked, "still there after everything was closed: %s", what)
		}
		return nil
	}
}}

func (c *child) run() (err error) {
	if c.role = roleOf(c.Role); c.role == nil {
		return fmt.Errorf("no role %q", c.Role)
	}
	syscall.CloseOnExec(ledgerFd)
	// It stays mapped: goroutines look at it until the end.
	if c.ledger, err = mapLedger(os.NewFile(ledgerFd, ledgerFile)); err != nil {
		return err
	}
	c.words, c.still = c.ledger.region(c.role.name), c.ledger.still(c.role.name)
	crash.Dying(func() {
		c.ledger.word(wordDeath + c.Place).Store(uint64(spin.Now()))
	})
	go c.beat()
	// For bells: other users cannot enter it, and theirs have no name then, as nothing that is
	// between users has.
	if err = os.Setenv(shm.EnvDir, c.Base+"/"+queuesDir); err != nil {
		return err
	}
	if c.role.uid == 0 {
		if c.dir, err = shm.OpenDir(c.Base + "/" + queuesDir); err != nil {
			return err
		}
		defer c.dir.Close()
	}
	c.rnd = rand.New(rand.NewPCG(c.Seed, uint64(c.Index)))
	return c.role.run(c)
}

// running returns a context that ends when the run comes to a phase, or stop is called.
func (c *child) running(until uint64) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		for c.ledger.phase() < until && ctx.Err() == nil {
			nap(10 * time.Millisecond)
		}
		cancel()
	}()
	return ctx, cancel
}

// tell says what this process found: kindHung and the like.
func (c *child) tell(kind, format string, args ...any) { c.tellN(kind, 1, format, args...) }

// tellN says that it found so many.
func (c *child) tellN(kind string, n uint64, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	c.send(event{Kind: kind, N: n, Text: fmt.Sprintf("%s %d (pid %d): %s", c.Role, c.Index,
		os.Getpid(), text)})
}

func (c *child) send(e event) {
	e.Role = c.Role
	c.Send(e)
}

// held returns what this process has of the run: descriptors and mappings. What the runtime opens
// for itself does not name the run.
func (c *child) held() []string {
	open, mapped := stage.Held(c.Base+"/"+queuesDir, "memfd:", "pidfd", "socket:")
	return append(open, mapped...)
}

func nap(d time.Duration) { time.Sleep(d) }

// survives tells whether a process goes on living, and has what it had. One that was killed gives
// up what it has a little before it shows as dead, and one that ends before it notes that.
func survives(pid int, has func() bool) bool {
	for since := stage.Lifetime(); stage.Lifetime()-since < patience; nap(time.Millisecond) {
		if !has() || !lives(pid) {
			return false
		}
	}
	return true
}

// lives tells whether there is a process of that number, more than what is left of a dead one.
func lives(pid int) bool {
	state, _ := stat(pid)
	return state != "" && !strings.Contains("ZX", state)
}

// stat returns the state of a process, a letter, and when it began in clock ticks, as
// proc_pid_stat(5) has them; "" and 0 if that cannot be found out.
func stat(pid int) (state string, start uint64) {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(text), ") ")
	const startTime = 19 // after the name
	fields := strings.Fields(rest)
	if len(fields) <= startTime {
		return "", 0
	}
	start, _ = strconv.ParseUint(fields[startTime], 10, 64)
	return fields[0], start
}

// Words at the beginning of the ledger. All are atomic; beside each is who stores it. The words of
// the roles follow, see ledger.region.
const (
	wordPhase = iota // the supervisor: what everybody is to do
	wordDeath        // everybody: when the process of a place died; the first to know stores it
	// The process of a place: for how many nanoseconds it could run; 0 if it has not begun.
	wordLived = wordDeath + maxPlaces
	// The process of a place: since when it is surely told of the deaths that its role has to
	// tell; 0 while it is not.
	wordBound = wordLived + maxPlaces
	// The supervisor: the process of a place, as [process.word] has it, while it owes notices.
	wordOwes = wordBound + maxPlaces
	// The process of a place: what it surely has, or shares with who has it, by a number that only
	// those have who share it; 0 is nothing. Behind it what it had before, as long as it is told.
	wordHas = wordOwes + maxPlaces
	wordHad = wordHas + maxPlaces
	// The process of a place: the word of the ledger that names the owner of what it surely has, and
	// nobody else may have; 0 is nothing.
	wordOwns = wordHad + maxPlaces
	// The process of a place: it has come so far that its death shows anything.
	wordGrown = wordOwns + maxPlaces
	// The supervisor: the processes of a role, by its place in the table, are to keep still.
	wordStill  = wordGrown + maxPlaces
	ledgerHead = wordStill + maxRoles
)

// maxPlaces bounds how many processes live at once, maxRoles how many roles there are.
const (
	maxPlaces = 192
	maxRoles  = 32
)

// theOnly is what all processes of some roles share of which there is one.
const theOnly = 1

// Phases, in order.
const (
	phaseRun   = iota
	phaseStop  // all that do not drain close and end
	phaseDrain // those that drain read what is there, destroy it and end
)

type ledger struct {
	f     *os.File
	mem   []byte
	words []atomic.Uint64
}

// makeLedger makes the file, which is sparse.
func makeLedger(path string) (*ledger, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err = f.Truncate(int64(ledgerWords()) * 8); err == nil {
		var l *ledger
		if l, err = mapLedger(f); err == nil {
			return l, nil
		}
	}
	_ = f.Close()
	return nil, err
}

// mapLedger maps it; the ledger owns the file then.
func mapLedger(f *os.File) (*ledger, error) {
	mem, err := unix.Mmap(int(f.Fd()), 0, ledgerWords()*8, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	return &ledger{f: f, mem: mem, words: kind.Overlays[atomic.Uint64](mem)}, nil
}

func (l *ledger) close() {
	_ = unix.Munmap(l.mem)
	_ = l.f.Close()
}

func (l *ledger) word(i int) *atomic.Uint64 { return &l.words[i] }

// still is the word by which the processes of a role are to keep still.
func (l *ledger) still(name string) *atomic.Uint64 {
	return l.word(wordStill + slices.Index(Roles(), name))
}

func (l *ledger) phase() uint64 { return l.words[wordPhase].Load() }

// session is what is known of one time of a writer with a lane. reader is, between users, the one
// that has the lane, as far as the writer came to say so.
type session struct{ intent, published, seen, reader *atomic.Uint64 }

const sessionWords = 4

// mix makes the checksum of an entry.
func mix(name, number uint64) uint64 { return wire.Mix(name*0x9e3779b97f4a7c15 ^ number) }

// maxSessions of one writer.
const maxSessions = 1 << 16

// sessions are what the writers of a role note in the ledger, at the beginning of its words: how
// many each had, and what is known of each. Entries are numbered from 1 in each session, and say
// whose they are.
type sessions struct {
	role    *role
	words   []atomic.Uint64
	writers int
	holder  *atomic.Uint64 // between users: generation of the queue of who reads; else nil
}

// sessionsLength is how many words they take, with one for how often all was seen in a calm.
func sessionsLength(writers int) int { return writers + writers*maxSessions*sessionWords + 1 }

// calms is that word, which the supervisor stores.
func (ss sessions) calms() *atomic.Uint64 { return &ss.words[sessionsLength(ss.writers)-1] }

func (l *ledger) sessions(role string) sessions {
	r := roleOf(role)
	ss := sessions{role: r, words: l.region(role), writers: r.places}
	if r.site.between() {
		ss.holder = &l.region(r.site.reader)[siteHolder]
	}
	return ss
}

// gone tells that the reader which had a session's lane has no successor in it, and never will, if
// the writer is dead: what it has not seen was in memory of theirs that has no name.
func (ss sessions) gone(e session) bool {
	if ss.holder == nil {
		return false
	}
	holder := ss.holder.Load()
	return holder != 0 && e.reader.Load() != holder
}

// count is how many sessions a writer had; the writer stores it.
func (ss sessions) count(writer int) *atomic.Uint64 { return &ss.words[writer] }

// last returns the number of a writer's last session, within bounds.
func (ss sessions) last(writer int) uint64 { return min(ss.count(writer).Load(), maxSessions-1) }

func (ss sessions) at(writer int, n uint64) session {
	at := ss.words[ss.writers+(writer*maxSessions+int(n))*sessionWords:]
	return session{&at[0], &at[1], &at[2], &at[3]}
}

// sessionName packs whose session it is, as entries carry it; 0 is nobody's.
func sessionName(writer int, n uint64) uint64 { return uint64(writer+1)<<32 | n }

// named returns the session of a name.
func (ss sessions) named(name uint64) (s session, ok bool) {
	writer, n := int(name>>32)-1, name&(1<<32-1)
	if writer < 0 || writer >= ss.writers || n == 0 || n >= maxSessions {
		return session{}, false
	}
	return ss.at(writer, n), true
}

// each calls f with all sessions of all writers.
func (ss sessions) each(f func(writer int, n uint64, e session)) {
	for i := range ss.writers {
		for n := uint64(1); n <= ss.last(i); n++ {
			f(i, n, ss.at(i, n))
		}
	}
}

// sumSessions is role.sum of a role with sessions.
func sumSessions(s *supervisor, role *role, r *RoleReport) {
	ss := s.ledger.sessions(role.name)
	r.Counts["sessions"] = 0
	ss.each(func(_ int, _ uint64, e session) {
		r.Counts["sessions"]++
		published := e.published.Load()
		r.Published += published
		r.InDoubt += max(published, e.intent.Load()) - published
		seen := e.seen.Load()
		r.Read += seen
		if seen < published && ss.gone(e) {
			r.Gone += published - seen
		}
	})
}

// checkSessions is role.check of one.
func checkSessions(s *supervisor, role *role) {
	ss := s.ledger.sessions(role.name)
	ss.each(func(i int, n uint64, e session) {
		published, seen := e.published.Load(), e.seen.Load()
		if intent := e.intent.Load(); seen > max(intent, published) {
			s.broken(ss.role.name, kindUnpublished, seen-intent, "of %s %d session %d, which "+
				"published no more than %d, %d were seen", ss.role.name, i, n, intent, seen)
		}
		if seen < published && !ss.gone(e) {
			s.broken(ss.role.name, kindLost, published-seen, "of %s %d session %d only %d of %d "+
				"were seen", ss.role.name, i, n, seen, published)
		}
	})
}

// afterPublish are steps at which the tail is stored, and the poster was not told: what stands
// before it must be read. A writer also rings when its lane is full and it publishes nothing, so
// the steps of ringing say nothing.
var afterPublish = map[crash.Label]bool{crash.PublishStored: true, crash.PublishEnded: true,
	crash.EventPublished: true}

// beforePublish are steps at which it is not stored yet: no more may ever be read of the session.
var beforePublish = map[crash.Label]bool{crash.Filled: true, crash.Stamped: true,
	crash.EventFilled: true}

// unread is what a writer that died has left to be read: its successor's lane would be looked at
// for that one's sake.
type unread struct {
	want  uint64 // 0 is nothing
	of    session
	since time.Duration // as lifetime has it
}

func (b *unread) seen() bool { return b.want == 0 || b.of.seen.Load() >= b.want }

// died notes what is left to be read. At a step it is known exactly whether the entries that the
// writer was posting are published: if not, no more may ever come.
func (ss sessions) died(p *proc) {
	n := ss.last(p.index)
	if n == 0 {
		return
	}
	of := ss.at(p.index, n)
	p.left = unread{of.published.Load(), of, stage.Lifetime()}
	// Between users a writer stores tails for a successor, too, of what is published already.
	if p.shot || ss.holder != nil {
		return
	}
	if beforePublish[p.step] {
		of.intent.Store(p.left.want)
	} else if afterPublish[p.step] && p.left.want < of.intent.Load() {
		p.left.want++ // at least
	}
}

// sessionsSettled tells whether the next writer may come: the reader has seen all of its
// predecessor, though that could not ring any more.
func sessionsSettled(s *supervisor, p *proc) bool {
	b := &p.left
	if !b.seen() && s.ledger.sessions(p.role.name).gone(b.of) {
		b.want = 0
	}
	if !b.seen() && stage.Lifetime()-b.since < patience/2 {
		return false
	}
	if !b.seen() {
		s.broken(p.role.name, kindHung, 1, "of %s %d, which is dead, %d of %d were seen in %v (step "+
			"%v)", p.role.name, p.index, b.of.seen.Load(), b.want, patience/2, p.step)
	}
	b.want = 0
	return true
}

// beat tells the supervisor for how long this process could run.
func (c *child) beat() {
	for word := c.ledger.word(wordLived + c.Place); ; nap(stage.LivedEvery) {
		word.Store(uint64(stage.Lifetime()))
	}
}
