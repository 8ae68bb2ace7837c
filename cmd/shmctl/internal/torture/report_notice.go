package torture

import (
	"fmt"
	"slices"
	"time"
)

// noticeAdopted is how the death of one that had a thing is told by the one that got it. That is no
// notice through an event queue, and includes the time until there is one to get it.
const noticeAdopted = "adopted"

// noticeLate is how a death is told that came before the one it is told to.
const noticeLate = "to-successors"

// noticeStopped is how a death is told by a survivor that was stopped meanwhile.
const noticeStopped = "to-stopped"

// Notice is how long it took until a survivor knew of a death, in nanoseconds; nil without any.
type Notice struct {
	Count int    `json:"count"`
	P50   *int64 `json:"p50"`
	P99   *int64 `json:"p99"`
	Max   *int64 `json:"max"`
}

// Duties is what was demanded of survivors: of each of them, for each death that it was bound to
// be told of. What was neither told nor excused is "unnoticed", or open.
type Duties struct {
	Demanded uint64 `json:"demanded"`
	Told     uint64 `json:"told"`
	// Excused died itself before it was told or was not bound any more, or was told a number only.
	Excused uint64 `json:"excused"`
	Open    uint64 `json:"open"` // at the end of the run
}

func (d Duties) plus(e Duties) Duties {
	return Duties{d.Demanded + e.Demanded, d.Told + e.Told, d.Excused + e.Excused, d.Open + e.Open}
}

// String says how many there were.
func (d Duties) String() string {
	return fmt.Sprintf("%d demanded: %d told, %d excused, %d open at the end", d.Demanded, d.Told,
		d.Excused, d.Open)
}

// AllDuties adds up what was demanded.
func (n *Noticed) AllDuties() (all Duties) {
	for _, d := range n.Duties {
		all = all.plus(d)
	}
	return all
}

// Noticed is how long it took until survivors knew of deaths.
type Noticed struct {
	NoticeNs Notice            `json:"notice_ns"` // through event queues, of each survivor
	Notices  map[string]Notice `json:"notices"`   // by how they were told
	Duties   map[string]Duties `json:"duties"`    // by how deaths were to be told

	// AllNs are the times that this sums up, by how they were told.
	AllNs map[string][]int64 `json:"-"`
}

// Add adds what another run found to that.
func (n *Noticed) Add(other *Noticed) {
	if n.AllNs == nil {
		n.AllNs = map[string][]int64{}
	}
	for kind, ns := range other.AllNs {
		n.AllNs[kind] = append(n.AllNs[kind], ns...)
	}
	if n.Duties == nil {
		n.Duties = map[string]Duties{}
	}
	for kind, d := range other.Duties {
		n.Duties[kind] = n.Duties[kind].plus(d)
	}
	n.sum()
}

// sum sums up.
func (n *Noticed) sum() {
	var all []int64
	n.Notices = map[string]Notice{}
	for kind, ns := range n.AllNs {
		n.Notices[kind] = summary(ns)
		if kind != noticeAdopted && kind != noticeLate && kind != noticeStopped {
			all = append(all, ns...)
		}
	}
	n.NoticeNs = summary(all)
}

func summary(ns []int64) Notice {
	if len(ns) == 0 {
		return Notice{}
	}
	slices.Sort(ns)
	at := func(percent int) *int64 { return &ns[min(len(ns)-1, len(ns)*percent/100)] }
	return Notice{Count: len(ns), P50: at(50), P99: at(99), Max: &ns[len(ns)-1]}
}

// String says how many there were and how long they took.
func (n Notice) String() string {
	if n.P50 == nil {
		return "none"
	}
	return fmt.Sprintf("%d told: p50 %v, p99 %v, max %v", n.Count, time.Duration(*n.P50),
		time.Duration(*n.P99), time.Duration(*n.Max))
}
