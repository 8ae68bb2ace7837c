package torture

import (
	"os"
	"testing"

	"github.com/shmring/shmring/shm"
)

// TestNumbersComeRound: what is told late of one process is not taken for the next that has its
// number.
func TestNumbersComeRound(t *testing.T) {
	first, next := process{77, 1000}, process{77, 2000}
	n, by := newNotices(), process{5, 50}
	n.born(first, "first")
	n.came(by, event{Pid: 77, Start: 1000, What: noticeWriter, AtNs: 15}) // before we know of it
	n.dead(first, death{"writer", 10})
	n.born(next, "next")
	n.came(by, event{Pid: 77, Start: 1000, What: noticeWriter, AtNs: 16})
	if len(n.early) != 0 || len(n.ns[noticeWriter]) != 1 || n.ns[noticeWriter][0] != 5 {
		t.Errorf("%+v", n)
	}
	n.came(by, event{Pid: 77, What: noticeWriter, AtNs: 30}) // whoever has the number: that one lives
	n.came(by, event{Pid: 77, Start: 2000, What: noticeReader, AtNs: 30})
	if len(n.early) != 2 {
		t.Errorf("%+v", n)
	}
	n.dead(next, death{"writer", 20})
	if len(n.early) != 0 || len(n.ns[noticeWriter]) != 2 || n.ns[noticeReader][0] != 10 {
		t.Errorf("%+v", n)
	}
}

// TestStartTicks: the supervisor and the library mean the same by when a process began.
func TestStartTicks(t *testing.T) {
	if got, want := startTicks(os.Getpid()), shm.Self().StartTicks; got != want || got == 0 {
		t.Errorf("%d, want %d", got, want)
	}
	if got := startTicks(1 << 30); got != 0 {
		t.Errorf("of nobody: %d", got)
	}
}
