package xdp

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/shmring/shmring/internal/xskernel"
	"github.com/shmring/shmring/shm"
)

// Tests whose machine is short of time on purpose wait longer for the kernel.
func init() { busyBound = time.Minute }

// ForgePost puts any descriptor into the transmit ring, as this package never does. If it names a
// frame that was acquired, the frame counts as posted.
func ForgePost(s *Socket, d xskernel.Desc, context uint64) bool {
	if s.tx.room(s.built+1) <= s.built {
		return false
	}
	if id := s.frameOf(d.Addr); s.acquired(id) {
		s.built--
		s.put(id, d, context)
		return true
	}
	s.tx.put(d)
	return true
}

// SendOffset is where the packet of an acquired frame lies in the UMEM.
func SendOffset(s *Socket, frame uint32) uint64 { return s.sendOff(frame) }

// SentTo returns how far the kernel has read the transmit ring.
func SentTo(s *Socket) uint32 { return s.tx.cons.Load() }

// SendOnce makes one system call that sends.
func SendOnce(s *Socket) error {
	if e := s.sendto(1); e != 0 {
		return e
	}
	return nil
}

// SimulateShared is for simulated sockets what [OpenShared] is for real ones. Of the options those
// count that count there.
func SimulateShared(first *Socket, o Options) (*Socket, *xskernel.Kernel, error) {
	if first.sim == nil || first.closed {
		return nil, nil, first.error(simOp, ErrOptions, "share an open simulated socket")
	}
	s := first.sibling(o)
	o, err := s.enter(first, o)
	if err != nil {
		return nil, nil, first.error(simOp, err, "")
	}
	o.NoNeedWakeup, o.Mode = !first.granted.NeedWakeup, first.granted.Mode
	if err := s.plug(first.sim.Queue, o, 0); err != nil {
		_ = s.release()
		return nil, nil, err
	}
	return s, s.sim, nil
}

// AttachedProgram says which XDP program an interface of the calling thread's network namespace
// has, whosever it is; the ID is 0 if there is none. Of several it is the one in the driver.
func AttachedProgram(ifname string) (ProgramInfo, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const op = "look for a program"
	ifi, err := findInterface(op, ifname)
	if err != nil {
		return ProgramInfo{}, err
	}
	info, _, err := askLink(ifi.Index)
	if err != nil {
		return info, &shm.Error{Pkg: pkg, Op: op, Name: ifname, Err: err}
	}
	return info, nil
}

// QueueHolder finds the process that has a queue.
var QueueHolder = queueHolder

// Seen is the number of all frames that the program saw.
func (c Counters) Seen() (n uint64) {
	for _, v := range c.counterOrder() {
		n += *v
	}
	return n
}

// Steer adds the rule that names a port and nothing else.
func (p *Program) Steer(port uint16, base uint32) error {
	_, err := p.AddRule(Rule{UDPPort: port}, Target{Base: base})
	return err
}

// Unsteer removes the rule of Steer, if there is one.
func (p *Program) Unsteer(port uint16) error {
	if i := p.find(Rule{UDPPort: port}); i >= 0 {
		return p.RemoveRule(p.rules[i].id)
	}
	return nil
}

// RuleStats is one entry of Rules.
func (p *Program) RuleStats(id RuleID) (RuleStatus, error) {
	all, err := p.Rules()
	for _, s := range all {
		if s.ID == id {
			return s, err
		}
	}
	return RuleStatus{}, errors.Join(err, ErrNoRule)
}

// Recount compares the numbers of frames by state with the states themselves, and the stacks of
// free frames with those that are free.
func Recount(s *Socket) error {
	t := s.frames
	var counts [frameStates]uint64
	for _, state := range t.state {
		counts[state]++
	}
	if counts != t.counts {
		return fmt.Errorf("recounted %v, kept %v", counts, t.counts)
	}
	stacked := make([]int, len(t.state))
	for _, i := range slices.Concat(t.rxFree, t.txFree) {
		stacked[i]++
	}
	for i, state := range t.state {
		if n := stacked[i]; n > 1 || (n == 1) != (state == frameFree) && state != frameQuarantine {
			return fmt.Errorf("frame %d is %v and %d times on a stack", i, state, n)
		}
	}
	return nil
}

// Members is how many numbers of sockets on a queue are in use.
func Members(s *Socket) int { return len(s.members) }

// Sending is how many posted packets have not come out of Reap.
func Sending(s *Socket) int {
	n := s.RingStats()
	return int(n.Posted - n.Sent)
}

// Headroom is what the kernel leaves alone at the start of a frame's chunk.
func Headroom(s *Socket, frame uint32) []byte {
	return s.mem[s.base(frame):][:s.headroom]
}
