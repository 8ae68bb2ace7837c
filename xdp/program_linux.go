package xdp

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/shm"
)

// Program is the steering program on one interface: frames that its rules match go to sockets,
// everything else to the kernel's stack. The kernel detaches it when the process ends, however it
// ends. Its methods may be called from any goroutine; rules change while frames arrive.
type Program struct {
	ifname  string
	ifindex int
	netns   uint64 // cookie of its namespace
	info    ProgramInfo

	mu     sync.Mutex // guards what follows
	objs   steerObjects
	link   link.Link
	owners map[uint32]*Socket // by slot: a socket takes only itself out again
	rules  []*installed
	table  ruleTable // what the maps hold
	local  Local     // as the map holds it
	lastID RuleID
	net    uint32 // the last number of a net
	closed bool
}

// Attach loads the steering program and attaches it to an interface of the calling thread's network
// namespace. A program that is there already is not touched: the error is then a
// *[BusyError].
func Attach(ifname string, o ProgramOptions) (*Program, error) {
	// Interface, look and attach are to happen in the network namespace of one thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	ifi, err := findInterface("attach program", ifname)
	if err != nil {
		return nil, err
	}
	if err := refuseAttached(ifi); err != nil {
		return nil, err
	}
	p := &Program{ifname: ifname, ifindex: ifi.Index}
	_, p.netns = askSocket(ifname)
	if err := p.load(o); err != nil {
		return nil, err
	}
	if err := p.attach(o.Mode); err != nil {
		_ = p.Close()
		if attached := refuseAttached(ifi); errors.Is(err, unix.EBUSY) && attached != nil {
			return nil, attached // it came between the look and the attach
		}
		return nil, p.error("attach program", err)
	}
	return p, nil
}

func (p *Program) load(o ProgramOptions) error {
	spec, err := loadSteer()
	if err != nil {
		return p.error("load program", err)
	}
	if o.Sockets != 0 {
		spec.Maps[steerMapSocks].MaxEntries = o.Sockets
	}
	if o.Rules != 0 {
		spec.Maps[steerMapHits].MaxEntries = o.Rules
		spec.Maps[steerMapNets].MaxEntries = o.Rules
	}
	err = setConstants(spec, o)
	if err == nil {
		err = spec.LoadAndAssign(&p.objs, nil)
	}
	if err != nil {
		return p.error("load program", err)
	}
	p.owners, p.table, p.local = map[uint32]*Socket{}, newRuleTable(), Local{}
	return nil
}

func setConstants(spec *ebpf.CollectionSpec, o ProgramOptions) error {
	var ssh [2]byte
	var multi uint8
	if !o.SteerSSH {
		ssh = portKey(portSSH)
	}
	if o.MultiBuffer {
		multi = 1
		spec.Programs[steerProgSteer].Flags |= unix.BPF_F_XDP_HAS_FRAGS
	}
	return errors.Join(spec.Variables["ssh_port"].Set(ssh),
		spec.Variables["multi_buffer"].Set(multi))
}

func (p *Program) attach(want AttachMode) error {
	if want != AttachGeneric {
		err := p.attachAs(AttachNative)
		if err == nil || want == AttachNative || !driverRefuses(err) {
			return err
		}
		p.info.Refused = err
	}
	return p.attachAs(AttachGeneric)
}

func (p *Program) attachAs(m AttachMode) error {
	flags := link.XDPDriverMode
	if m == AttachGeneric {
		flags = link.XDPGenericMode
	}
	l, err := link.AttachXDP(link.XDPOptions{
		Program: p.objs.Steer, Interface: p.ifindex, Flags: flags,
	})
	if err != nil {
		return err
	}
	p.link, p.info.Mode = l, m
	if info, err := p.objs.Steer.Info(); err == nil {
		id, _ := info.ID()
		p.info.ID, p.info.Name = uint32(id), info.Name
	}
	return nil
}

// driverRefuses tells a driver that cannot run the program from reasons that generic mode would not
// cure: no native support, an MTU beyond one buffer, too few queues for those of the peer.
func driverRefuses(err error) bool {
	for _, e := range []unix.Errno{
		unix.EOPNOTSUPP, unix.ERANGE, unix.EINVAL, unix.ENOSPC, unix.ENOMEM,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func (p *Program) error(op string, err error) error {
	out := &shm.Error{Pkg: pkg, Op: op, Name: p.ifname, Err: err}
	if errors.Is(err, unix.EPERM) {
		out.Err = refine(ErrNoCapability, withoutGuess{err})
		out.Hint = privilegeHint(probeHost())
	}
	return out
}

// withoutGuess is an EPERM without the guess of the library about its cause. Kernels count memory
// of programs and maps against a limit of locked memory before 5.11 only.
type withoutGuess struct{ error }

func (e withoutGuess) Error() string {
	const guess = " (MEMLOCK may be too low, consider rlimit.RemoveMemlock)"
	return strings.ReplaceAll(e.error.Error(), guess, "")
}

func (e withoutGuess) Unwrap() error { return e.error }

// privilegeHint says what this process lacks for BPF, as far as it can be seen.
func privilegeHint(h hostFindings) string {
	const all = "run as root, or with CAP_BPF, CAP_NET_ADMIN and CAP_NET_RAW"
	switch {
	case len(h.missingCaps) > 0:
		return "this process lacks " + strings.Join(h.missingCaps, ", ") + ": " + all
	case h.memlockBytes != unix.RLIM_INFINITY && !h.memlockFree && before511():
		return fmt.Sprintf("this kernel counts it as locked memory, of which %d KiB are allowed: raise "+
			"\"ulimit -l\"", h.memlockBytes>>10)
	}
	return "this process has the capabilities, so something else forbids it: they may be those of a " +
		"user namespace, of a container or of a security module; " + all + " outside of it"
}

// before511 reports a kernel that is known to be older than 5.11.
func before511() bool {
	var u unix.Utsname
	var major, minor int
	if unix.Uname(&u) != nil {
		return false
	}
	n, _ := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor)
	return n == 2 && (major < 5 || major == 5 && minor < 11)
}

// Info says what the kernel made of the program.
func (p *Program) Info() ProgramInfo { return p.info }

// locked runs f on a program that is not closed, and fills in what an error lacks.
func (p *Program) locked(op string, f func() error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	err := os.ErrClosed
	if !p.closed {
		err = f()
	}
	if err != nil {
		return p.error(op, err)
	}
	return nil
}

// present takes the deletion of what is not there for done.
func present(err error) error {
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	}
	return err
}

// put gives a slot to a socket, which may take it over from another one.
func (p *Program) put(slot uint32, s *Socket) error {
	return p.locked(fmt.Sprintf("insert socket at slot %d", slot), func() error {
		err := p.objs.Socks.Put(slot, uint32(s.fd))
		if err == nil {
			p.owners[slot] = s
		}
		return err
	})
}

// remove empties a slot that still is the socket's; frames that were to go there go to the kernel's
// stack. A program that was closed before has no slots any more.
func (p *Program) remove(slot uint32, s *Socket) error {
	err := p.locked(fmt.Sprintf("remove socket at slot %d", slot), func() error {
		if p.owners[slot] != s {
			return nil
		}
		delete(p.owners, slot)
		return present(p.objs.Socks.Delete(slot))
	})
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}

// Counters adds up what the program counted on every CPU.
func (p *Program) Counters() (Counters, error) {
	var c Counters
	err := p.locked("read counters", func() error {
		for i, field := range c.counterOrder() {
			var perCPU []uint64
			if err := p.objs.Counts.Lookup(uint32(i), &perCPU); err != nil {
				return err
			}
			for _, n := range perCPU {
				*field += n
			}
		}
		return nil
	})
	return c, err
}

// Close detaches the program. Frames go to the kernel's stack from then on.
func (p *Program) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	p.closed = true
	err := p.objs.Close()
	if p.link != nil { // there is none if attaching failed
		err = errors.Join(p.link.Close(), err)
	}
	return err
}

// findInterface looks a name up in the network namespace of the calling thread.
func findInterface(op, ifname string) (*net.Interface, error) {
	if ifname == "" || len(ifname) >= unix.IFNAMSIZ {
		return nil, &shm.Error{Pkg: pkg, Op: op, Name: ifname, Err: ErrNoDevice,
			Hint: fmt.Sprintf("a name has 1 to %d bytes", unix.IFNAMSIZ-1)}
	}
	ifi, err := net.InterfaceByName(ifname)
	if err != nil {
		var sys unix.Errno
		if errors.As(err, &sys) && sys != unix.ENODEV {
			return nil, &shm.Error{Pkg: pkg, Op: op, Name: ifname, Err: err}
		}
		return nil, &shm.Error{Pkg: pkg, Op: op, Name: ifname, Err: ErrNoDevice,
			Hint: "see \"ip link\"; interfaces of other network namespaces are not seen"}
	}
	if ifi.Index <= 0 || ifi.Index > math.MaxInt32 {
		return nil, &shm.Error{Pkg: pkg, Op: op, Name: ifname, Err: ErrNoDevice}
	}
	return ifi, nil
}

// firstAddress returns an address of an interface, an IPv4 one if there is one.
func firstAddress(ifi *net.Interface) (first netip.Addr) {
	addrs, _ := ifi.Addrs() // without them there is less to show
	for _, a := range addrs {
		p, err := netip.ParsePrefix(a.String())
		switch {
		case err != nil:
		case p.Addr().Is4():
			return p.Addr()
		case !first.IsValid() || first.IsLinkLocalUnicast():
			first = p.Addr()
		}
	}
	return first
}

// AddRule has frames that match the rule go to the target, from the moment that it returns on; no
// frame is decided by a part of a rule meanwhile.
//
// Errors: [ErrRule], [ErrRuleExists], [ErrRulesFull].
func (p *Program) AddRule(r Rule, to Target) (RuleID, error) {
	var id RuleID
	err := p.locked(fmt.Sprintf("add rule \"%v\"", r), func() (err error) {
		id, err = p.addRule(r.normal(), to)
		return err
	})
	return id, err
}

func (p *Program) addRule(r Rule, to Target) (RuleID, error) {
	if err := errors.Join(r.check(), to.check()); err != nil {
		return 0, err
	}
	if i := p.find(r); i >= 0 {
		return 0, fmt.Errorf("%w: number %d", ErrRuleExists, p.rules[i].id)
	}
	n := &installed{id: p.lastID + 1, rule: r, target: to}
	for n.index = 0; slices.ContainsFunc(p.rules, func(o *installed) bool {
		return o.index == n.index
	}); {
		n.index++
	}
	if most := p.objs.Hits.MaxEntries(); n.index >= most {
		return 0, fmt.Errorf("%w: possible are %d, see ProgramOptions.Rules", ErrRulesFull, most)
	}
	none := make([]hit, ebpf.MustPossibleCPU())
	if err := p.objs.Hits.Put(n.index, none); err != nil {
		return 0, err
	}
	if err := p.install(append(slices.Clip(p.rules), n)); err != nil {
		return 0, err
	}
	p.lastID = n.id
	return n.id, nil
}

// find returns the index of the rule, or -1.
func (p *Program) find(r Rule) int {
	return slices.IndexFunc(p.rules, func(o *installed) bool { return o.rule == r })
}

// RemoveRule takes a rule away; frames that it decided about are for the next rule that matches
// them, or for the kernel's stack. Error: [ErrNoRule].
func (p *Program) RemoveRule(id RuleID) error {
	return p.locked(fmt.Sprintf("remove rule %d", id), func() error {
		i := slices.IndexFunc(p.rules, func(o *installed) bool { return o.id == id })
		if i < 0 {
			return fmt.Errorf("%w: number %d", ErrNoRule, id)
		}
		return p.install(slices.Delete(slices.Clone(p.rules), i, i+1))
	})
}

// SetLocal says which destinations rules with Local mean; there are none before. It takes the place
// of what was said before, and what is in both never misses a frame. Groups get half of the room,
// since anybody joins them; those that were told first stay. Error: [ErrRulesFull], with which all
// is told that there is room for.
func (p *Program) SetLocal(l Local) error {
	return p.locked("set local addresses", func() error {
		groups, most := 0, int(p.objs.Locals.MaxEntries()/2)
		for a := range p.local {
			if _, ok := l[a]; ok {
				groups += groupCount(a)
				continue
			}
			err := present(p.objs.Locals.Delete(keyOf(netip.PrefixFrom(a, a.BitLen()))))
			if err != nil {
				return err
			}
			delete(p.local, a)
		}
		var left error
		for a, mac := range l {
			old, ok := p.local[a]
			if ok && old == mac {
				continue
			}
			err := error(ErrRulesFull)
			if ok || groups+groupCount(a) <= most {
				err = full(p.objs.Locals.Put(keyOf(netip.PrefixFrom(a, a.BitLen())), mac))
			}
			if err != nil {
				left = err
				continue
			}
			if p.local[a] = mac; !ok {
				groups += groupCount(a)
			}
		}
		return left
	})
}

// groupCount is 1 for a group.
func groupCount(a netip.Addr) int {
	if a.IsMulticast() {
		return 1
	}
	return 0
}

// install makes the maps those of the rules. If that fails they are as before.
func (p *Program) install(rules []*installed) error {
	if err := p.sync(compile(rules, p.table.nets, &p.net)); err != nil {
		return errors.Join(full(err), p.sync(compile(p.rules, p.table.nets, &p.net)))
	}
	p.rules = rules
	return nil
}

func full(err error) error {
	if errors.Is(err, unix.E2BIG) || errors.Is(err, unix.ENOSPC) {
		return refine(ErrRulesFull, err)
	}
	return err
}

// sync writes the difference to what the maps hold, in an order in which no frame sees a part of a
// rule: a net comes after all entries for it and goes before them, and a combination of fields is
// announced after its entries.
func (p *Program) sync(want ruleTable) error {
	have := &p.table
	for k, v := range want.entries {
		if old, ok := have.entries[k]; ok && old == v {
			continue
		}
		if err := p.objs.steerMaps.Rules.Put(k, v); err != nil {
			return err
		}
		have.entries[k] = v
	}
	for prefix, id := range want.nets {
		if _, ok := have.nets[prefix]; ok {
			continue
		}
		if err := p.objs.Nets.Put(keyOf(prefix), id); err != nil {
			return err
		}
		have.nets[prefix] = id
	}
	if have.kinds != want.kinds {
		if err := p.objs.Kinds.Put(uint32(0), want.kinds); err != nil {
			return err
		}
		have.kinds = want.kinds
	}
	return p.prune(want)
}

func (p *Program) prune(want ruleTable) error {
	have := &p.table
	for prefix := range have.nets {
		if _, ok := want.nets[prefix]; ok {
			continue
		}
		if err := present(p.objs.Nets.Delete(keyOf(prefix))); err != nil {
			return err
		}
		delete(have.nets, prefix)
	}
	for k := range have.entries {
		if _, ok := want.entries[k]; ok {
			continue
		}
		if err := present(p.objs.steerMaps.Rules.Delete(k)); err != nil {
			return err
		}
		delete(have.entries, k)
	}
	return nil
}

// Rules lists the rules in the order in which they were added, with what each did so far.
func (p *Program) Rules() ([]RuleStatus, error) {
	var out []RuleStatus
	err := p.locked("read rules", func() error {
		for _, r := range p.rules {
			s, err := p.status(r)
			if err != nil {
				return err
			}
			out = append(out, s)
		}
		return nil
	})
	return out, err
}

func (p *Program) status(r *installed) (RuleStatus, error) {
	s := RuleStatus{ID: r.id, Rule: r.rule, Target: r.target}
	var perCPU []hit
	if err := p.objs.Hits.Lookup(r.index, &perCPU); err != nil {
		return s, err
	}
	for _, h := range perCPU {
		s.Frames += h.Frames
		s.Bytes += h.Bytes
		s.NoSocket += h.NoSocket
	}
	return s, nil
}
