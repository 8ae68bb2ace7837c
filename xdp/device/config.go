package device

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp"
)

// Config of a server. Zero values stand for the defaults.
type Config struct {
	Interface string // in the network namespace of the thread that calls NewServer
	// Queues of the interface to serve; none stands for all that there are. Packets that arrive on
	// others go to the kernel, also those to ports of applications: nobody holds these there, so it
	// answers that nobody listens.
	Queues []uint32
	Frames uint32 // of the UMEM of each queue; 4096
	Socket xdp.Options
	Attach xdp.AttachMode
	// Resolver is asked for the way of each datagram to be sent, by one goroutine. It must not block:
	// endpoint.ErrResolving says that the kernel has been asked and will know.
	Resolver xdp.Resolver
	// Allow is the allow-list, of which the first line counts that names the peer. Without one
	// only processes of the server's own user are served.
	Allow []Allow
	// MaxApps bounds the applications at a time; 64.
	MaxApps int
	// Spin is how long the server looks for work before it sleeps; as in cq.Options.
	Spin time.Duration
	// Directory is where objects of the sockets stand, one for each queue, by which tools of the
	// server's own user look at them and capture packets (packages status and capture): the default
	// directory if nil. A server that cannot have them, or has NoObject, works all the same.
	Directory *shm.Dir
	NoObject  bool
	// Report is told of applications that were refused or broke the protocol, and of what the server
	// itself ran out of. Of each cause it is told a few times, and then once in a while, with how
	// many were left out before, and the last of those; Stats counts all. It may be called from
	// several goroutines.
	Report func(error)

	// RxBatch and TxBatch are how many packets of a queue and commands of an application are
	// worked on before it is another one's turn; 64 and 32. Frames that an application gives back
	// are not counted.
	RxBatch, TxBatch int
}

const (
	defaultApps   = 64
	maxApps       = 1024
	defaultFrames = 4096
	// helloTimeout is how long a peer may take from connecting to being served.
	helloTimeout = 5 * time.Second
	// answerTimeout is how long an application that is served may leave its answers unread.
	answerTimeout = time.Second
	// parkedNs is how long a datagram waits for the hardware address of its destination.
	parkedNs = 3e9
)

func (c Config) resolve() (Config, error) {
	bad := func(format string, args ...any) (Config, error) {
		return c, failed("configure server", c.Interface,
			fmt.Errorf("%w: %s", ErrOptions, fmt.Sprintf(format, args...)), "")
	}
	if c.MaxApps == 0 {
		c.MaxApps = defaultApps
	}
	if c.Frames == 0 {
		c.Frames = defaultFrames
	}
	if c.RxBatch == 0 {
		c.RxBatch = 64
	}
	if c.TxBatch == 0 {
		c.TxBatch = 32
	}
	switch {
	case c.MaxApps < 0 || c.MaxApps > maxApps:
		return bad("%d applications, possible are 1 to %d", c.MaxApps, maxApps)
	case c.RxBatch < 0 || c.TxBatch < 0:
		return bad("a batch is negative")
	case c.Resolver == nil:
		return bad("Resolver is missing")
	}
	allow := c.Allow
	if len(allow) == 0 {
		allow = []Allow{{ID: uint32(os.Geteuid())}}
	}
	c.Allow = nil
	for _, a := range allow {
		a, err := a.resolve()
		if err != nil {
			return c, err
		}
		c.Allow = append(c.Allow, a)
	}
	return c, nil
}

// AppStats is what the server did for one application.
type AppStats struct {
	Name     string
	PID      int
	UID, GID int
	Ports    []uint16

	Frames, Loaned   int    // of its UMEM, and how many of them it has
	Sends, UnderWay  int    // granted, and in use
	Received         uint64 // packets handed to it
	NoFrame          uint64 // packets dropped because it has all its frames
	NoRoom           uint64 // packets dropped because its queue is full
	BadChecksum      uint64 // packets dropped because their UDP checksum is wrong
	Returned, Stale  uint64 // frames given back, and returns that named none
	Sent, SendFailed uint64
	BytesIn          uint64 // of payload
	BytesOut         uint64
}

// Stats is what a server has, and what it did.
type Stats struct {
	Interface string
	Queues    int
	Attached  xdp.AttachMode // as it was granted
	Bound     xdp.BindMode   // as it was granted

	Apps      []AppStats
	Admitted  uint64 // applications, ever
	Evicted   uint64 // applications that are gone
	Refused   uint64 // connections that came to nothing
	Received  uint64 // packets from the device: the sum of the next six
	Delivered uint64 // to applications, also such as are gone
	Dropped   uint64 // since their application had no frame or no room
	Unclaimed uint64 // packets for nobody: their application had just gone
	Malformed uint64 // no whole datagrams, or with a wrong checksum in the IPv4 header
	// BadChecksum counts packets with a wrong UDP checksum, but for those whose application wants
	// them.
	BadChecksum uint64
	// Foreign counts packets that are for somebody else than the interface itself, and came all the
	// same: an address of it has just gone.
	Foreign    uint64
	LinkDown   uint64 // rounds that found the link down
	Rounds     uint64
	Polls      uint64 // system calls to sleep
	Frames     []xdp.FrameStats
	Rings      []xdp.RingStats
	Syscalls   []xdp.SyscallStats
	Kernel     []xdp.KernelStats // of each socket, at most a tenth of a second old
	Orphans    uint64            // sends whose application was gone when they ended
	SendsInUse int

	// Of the queues of all applications, those that are gone too.
	Publishes  uint64 // batches of completions that were published
	Wakes      uint64 // of an application that slept
	QueueCalls uint64 // system calls, to wake and to be woken
}

// What a rule of the allow-list grants where it does not say.
const (
	DefaultFrames = 512
	DefaultSends  = 256
	DefaultRules  = 8
	DefaultApps   = 16
	// Addresses and mebibytes.
	DefaultDestinations = 4096
	DefaultMemoryMiB    = 64
	// Bounds of the same, which keep a slip of the pen from taking all memory.
	maxRuleFrames = 1 << 16
	maxRuleSends  = 1 << 12
	maxRuleWays   = 1 << 16
	maxRuleMiB    = 1 << 14
)

// Allow is a line of the allow-list: who may use the device, and how much of it all processes of
// this user or group may have together. The zero value of a number stands for its default.
type Allow struct {
	Group bool   // ID is a group of the process, the main one or another
	ID    uint32 // of the user or group
	// First and Last are the UDP ports that may be taken; both zero allow all.
	First, Last uint16
	// Any gives datagrams to these ports whatever their destination: for other hosts' addresses,
	// broadcast, of any VLAN, and such as the kernel would have forwarded. Without it only those for
	// the interface itself are taken.
	Any    bool
	Frames int // received packets that may be unread or in the hands of applications
	Sends  int // sends under way
	Rules  int // ports taken at a time
	Apps   int // connections
	// Destinations are the addresses whose way is remembered for them. For one more the one used
	// longest ago is forgotten, so that the way to it has to be asked for again.
	Destinations int
	// MemoryMiB is for what the server posts to in queues of applications, which are as large as
	// these want; all other memory goes by Frames and Sends.
	MemoryMiB int
}

// ParseAllow reads what String writes: "uid:1000,ports=5000-5100,frames=512,sends=64,rules=8", or
// "uid:1000,to=any".
func ParseAllow(text string) (Allow, error) {
	bad := func(part, want string) (Allow, error) {
		return Allow{}, failed("read allow-list", "", fmt.Errorf("%w: %q in %q: %s is wanted",
			ErrOptions, part, text, want), "as in uid:1000,ports=5000-5100,frames=512")
	}
	var a Allow
	who, rest, more := strings.Cut(text, ",")
	kind, id, ok := strings.Cut(who, ":")
	n, err := strconv.ParseUint(id, 10, 32)
	if !ok || err != nil || kind != "uid" && kind != "gid" {
		return bad(who, "uid:NUMBER or gid:NUMBER")
	}
	a.ID, a.Group = uint32(n), kind == "gid"
	if !more {
		return a, nil
	}
	for part := range strings.SplitSeq(rest, ",") {
		key, value, _ := strings.Cut(part, "=")
		if key == "ports" {
			if a.First, a.Last, ok = parsePorts(value); !ok {
				return bad(part, "a port or a range of ports")
			}
			continue
		}
		if key == "to" {
			if a.Any = value == "any"; !a.Any {
				return bad(part, "to=any")
			}
			continue
		}
		i := slices.IndexFunc(grants, func(g grant) bool { return g.key == key })
		if i < 0 {
			return bad(part, "ports, to, frames, sends, rules, apps, destinations or memory")
		}
		field := grants[i].of(&a)
		if *field, err = strconv.Atoi(value); err != nil || *field < 1 || *field > grants[i].limit {
			return bad(part, fmt.Sprintf("a number from 1 to %d", grants[i].limit))
		}
	}
	return a, nil
}

func parsePorts(text string) (first, last uint16, ok bool) {
	from, to, isRange := strings.Cut(text, "-")
	if !isRange {
		to = from
	}
	a, err := strconv.ParseUint(from, 10, 16)
	b, err2 := strconv.ParseUint(to, 10, 16)
	return uint16(a), uint16(b), err == nil && err2 == nil && a > 0 && a <= b
}

// grant is a number of a line of the allow-list.
type grant struct {
	key        string
	def, limit int
	of         func(*Allow) *int
}

var grants = []grant{
	{"frames", DefaultFrames, maxRuleFrames, func(a *Allow) *int { return &a.Frames }},
	{"sends", DefaultSends, maxRuleSends, func(a *Allow) *int { return &a.Sends }},
	{"rules", DefaultRules, maxPorts, func(a *Allow) *int { return &a.Rules }},
	{"apps", DefaultApps, 1024, func(a *Allow) *int { return &a.Apps }},
	{"destinations", DefaultDestinations, maxRuleWays, func(a *Allow) *int { return &a.Destinations }},
	{"memory", DefaultMemoryMiB, maxRuleMiB, func(a *Allow) *int { return &a.MemoryMiB }},
}

// String is the form that ParseAllow reads.
func (a Allow) String() string {
	kind := "uid"
	if a.Group {
		kind = "gid"
	}
	text := fmt.Sprintf("%s:%d", kind, a.ID)
	if a.Last != 0 {
		text += fmt.Sprintf(",ports=%d-%d", a.First, a.Last)
	}
	if a.Any {
		text += ",to=any"
	}
	for _, g := range grants {
		if n := *g.of(&a); n != 0 {
			text += fmt.Sprintf(",%s=%d", g.key, n)
		}
	}
	return text
}

// list is who is meant.
func (a Allow) list() shm.AllowList {
	if a.Group {
		return shm.AllowList{GIDs: []int{int(a.ID)}}
	}
	return shm.AllowList{UIDs: []int{int(a.ID)}}
}

// resolve fills in defaults, and refuses what ParseAllow would.
func (a Allow) resolve() (Allow, error) {
	for _, g := range grants {
		n := g.of(&a)
		if *n == 0 {
			*n = g.def
		}
		if *n < 0 || *n > g.limit {
			return a, failed("read allow-list", "", fmt.Errorf("%w: %s is %d, possible are 1 to %d",
				ErrOptions, g.key, *n, g.limit), "")
		}
	}
	if a.First > a.Last {
		return a, failed("read allow-list", "", fmt.Errorf("%w: ports %d to %d", ErrOptions,
			a.First, a.Last), "")
	}
	if a.Last == 0 {
		a.First, a.Last = 1, 65535
	}
	return a, nil
}
