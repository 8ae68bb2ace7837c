package ctl

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"strconv"
	"strings"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/doorbell"
	"github.com/shmring/shmring/shm"
)

// slotBytes is the size of an entry, whatever its format.
const slotBytes = 64

// describe turns a snapshot into what is printed.
func describe(s *cq.Snapshot) Queue {
	o := &s.Options
	q := Queue{
		Name: s.Name, Path: s.Path, Kind: new(s.Kind.String()),
		UUID:          new(s.UUID.String()),
		ABI:           new(fmt.Sprintf("%d.%d", s.ABIMajor, s.ABIMinor)),
		Format:        new(o.Format.String()),
		Capacity:      new(uint64(o.Size)),
		SlotBytes:     new(uint64(slotBytes)),
		MaxLanes:      new(o.MaxLanes),
		OverrunPolicy: new(o.Overrun.String()),
		Lifetime:      new(o.Lifetime.String()),
		WaitObject:    new(o.Wait.String()),
		OrderPaidBy:   new(payer(o.WritersPay)),
		Generation:    new(s.Generation),
		CreatedAt:     new(time.Unix(0, s.CreatedRealNs).UTC()),
		SizeBytes:     new(s.SizeBytes),
		Reader:        new(process(s.Reader, s.Life)),
		Bell:          new(bell(s.Bell)),
		Overruns:      new(uint64(s.Overruns)),
	}
	if boot := shm.Self().BootID; !boot.IsZero() && boot == s.BootID {
		q.AgeNs = new(max(0, doorbell.Now()-s.CreatedMonoNs))
	}
	if s.Kind == shm.KindEvents {
		q.Format = nil // an event has one form
	}
	if d := s.Seat; d != nil {
		q.Bell.Domain, q.Bell.DomainBit = new(d.Bell.String()), &d.Bit
	}
	q.levels(s)
	q.Mode, q.UID, q.Owner = fileOwner(s.Mode, s.UID)
	for i := range s.Lanes {
		l := lane(&s.Lanes[i])
		if l.Error == nil {
			l.State = l.state(q.Capacity)
		}
		q.Lanes = append(q.Lanes, l)
	}
	q.State = new(q.state(s.State))
	return q
}

func payer(writers bool) string {
	if writers {
		return "writers"
	}
	return "reader"
}

func (q *Queue) levels(s *cq.Snapshot) {
	l, t := &s.Level, &s.Traffic
	q.Head, q.Peeked, q.Tail = &l.Head, &l.Peeked, &l.Tail
	q.Depth, q.Unreleased = new(l.Depth()), new(l.Unreleased())
	q.HighWater, q.Posted, q.Read = &l.HighWater, &l.Tail, &l.Read
	q.Publishes, q.Wakes, q.WakesSuppressed = &t.Publishes, &t.Wakes, &t.WakesSuppressed
	q.Refused = &t.Refused
}

// fileOwner tells of an object what the file system knows, with the name of its user.
func fileOwner(perm fs.FileMode, uid uint32) (mode *string, _ *uint32, owner *string) {
	number := strconv.FormatUint(uint64(uid), 10)
	owner = &number
	if u, err := user.LookupId(number); err == nil {
		owner = &u.Username
	}
	return new(fmt.Sprintf("%04o", perm)), &uid, owner
}

func lane(s *cq.LaneSnapshot) Lane {
	if s.Err != nil {
		return Lane{Row: s.Row, Own: s.Own, Error: NewProblem(s.Err), State: stateOfError(s.Err)}
	}
	l, t := &s.Level, &s.Traffic
	order := "seq-cst"
	if s.ReaderPays {
		order = "release"
	}
	return Lane{Row: s.Row, Own: s.Own, Process: process(s.Writer, s.Life),
		Generation: &s.Generation,
		Head:       &l.Head, Peeked: &l.Peeked, Tail: &l.Tail,
		Depth: new(l.Depth()), Unreleased: new(l.Unreleased()), HighWater: &l.HighWater,
		Posted: &l.Tail, Read: &l.Read, Publishes: &t.Publishes, Wakes: &t.Wakes,
		WakesSuppressed: &t.WakesSuppressed, Refused: &t.Refused,
		Overrun: &s.Overrun, Poisoned: &s.Poisoned, Parked: &s.Parked,
		Order: &order, SizeBytes: &s.SizeBytes}
}

func bell(v doorbell.View) Bell {
	notify := "none"
	switch v.Notify {
	case doorbell.NotifySolicited:
		notify = "solicited"
	case doorbell.NotifyAny:
		notify = "any"
	}
	return Bell{Armed: v.Armed, Direct: v.Direct, FD: v.FD, Member: v.Member, Channel: notify,
		Seq: v.Seq, Rung: v.Rung, Epoch: v.Epoch, SignalPending: v.Signal, ReadyLanes: v.Ready}
}

// DescribeProcess says what is known of the owner of an object, for tools that look at objects of
// kinds that this package does not know.
func DescribeProcess(o shm.Owner, life shm.Life) Process { return process(o, life) }

// process says what is known of the owner of an object.
func process(o shm.Owner, life shm.Life) Process {
	p := Process{Life: new(life.String())}
	if o.PID == 0 {
		return p
	}
	p.PID = &o.PID
	if o.PIDNS != 0 {
		p.PIDNamespace = &o.PIDNS
	}
	alive, known := shm.ProcessAlive(o)
	switch {
	case known:
		p.Alive = &alive
	case life == shm.Alive: // the kernel holds its lock, wherever it lives
		p.Alive = new(true)
	case life == shm.Dead:
		p.Alive = new(false)
	}
	if known && alive {
		p.Command, p.Stopped = command(o.PID), stopped(o.PID)
	}
	if known && !alive && life == shm.Alive {
		p.Life = new(lifeKept)
	}
	return p
}

// stopped reports whether a process of our own PID namespace is stopped, nil if that is not known.
func stopped(pid int) *bool {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return nil
	}
	after := text[bytes.LastIndexByte(text, ')')+1:] // a name may have parentheses in it
	return new(bytes.HasPrefix(after, []byte(" T")) || bytes.HasPrefix(after, []byte(" t")))
}

// command returns the name of a process of our own PID namespace. Its owner chose it.
func command(pid int) *string {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm")
	if err != nil {
		return nil
	}
	name := shm.Printable(strings.TrimSuffix(string(text), "\n"))
	return &name
}
