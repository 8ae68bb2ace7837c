package device

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/shmring/shmring/shm"
)

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
		field, limit := a.number(key)
		if field == nil {
			return bad(part, "ports, to, frames, sends, rules, apps, destinations or memory")
		}
		if *field, err = strconv.Atoi(value); err != nil || *field < 1 || *field > limit {
			return bad(part, fmt.Sprintf("a number from 1 to %d", limit))
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

func (a *Allow) number(key string) (field *int, limit int) {
	switch key {
	case "frames":
		return &a.Frames, maxRuleFrames
	case "sends":
		return &a.Sends, maxRuleSends
	case "rules":
		return &a.Rules, maxPorts
	case "apps":
		return &a.Apps, 1024
	case "destinations":
		return &a.Destinations, maxRuleWays
	case "memory":
		return &a.MemoryMiB, maxRuleMiB
	}
	return nil, 0
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
	for _, key := range []string{"frames", "sends", "rules", "apps", "destinations", "memory"} {
		if field, _ := a.number(key); *field != 0 {
			text += fmt.Sprintf(",%s=%d", key, *field)
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
	for _, d := range []struct {
		key string
		def int
	}{{"frames", DefaultFrames}, {"sends", DefaultSends}, {"rules", DefaultRules},
		{"apps", DefaultApps}, {"destinations", DefaultDestinations},
		{"memory", DefaultMemoryMiB}} {
		field, limit := a.number(d.key)
		if *field == 0 {
			*field = d.def
		}
		if *field < 0 || *field > limit {
			return a, failed("read allow-list", "", fmt.Errorf("%w: %s is %d, possible are 1 to %d",
				ErrOptions, d.key, *field, limit), "")
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

// account is a line of the allow-list with what is in use of it. Server.mu guards it.
type account struct {
	Allow
	frames, sends, rules, apps int
	lanes                      uint64 // bytes in queues of applications
	ways                       *ways  // the engine's
}

// room is how many bytes of queues are left.
func (c *account) room() uint64 { return uint64(c.MemoryMiB)<<20 - c.lanes }

// meetings is how many connections one user may begin at a time. They have the places of others as
// long as they are silent.
func (c *account) meetings(maxApps int) int {
	const most = 8
	return max(1, min(most, c.Apps/2, maxApps/2))
}

// book takes so much of an account, or says of what there is too little.
func (c *account) book(frames, sends, rules int) error {
	for _, b := range []struct {
		what              string
		used, more, limit int
	}{{"frames", c.frames, frames, c.Frames}, {"sends", c.sends, sends, c.Sends},
		{"rules", c.rules, rules, c.Rules}} {
		if b.more > b.limit-b.used {
			return fmt.Errorf("%w: %d %s wanted, %d of %d left", ErrBudget, b.more, b.what,
				b.limit-b.used, b.limit)
		}
	}
	c.frames, c.sends, c.rules = c.frames+frames, c.sends+sends, c.rules+rules
	return nil
}

func (c *account) unbook(frames, sends, rules int) {
	c.frames, c.sends, c.rules = c.frames-frames, c.sends-sends, c.rules-rules
}

// permits reports whether the port is in the account's range.
func (c *account) permits(port uint16) error {
	if port < c.First || port > c.Last || port == 0 {
		return fmt.Errorf("%w: port %d, allowed are %d to %d", ErrRefused, port, c.First, c.Last)
	}
	return nil
}
