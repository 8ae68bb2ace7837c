package cq_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/collect"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

func init() { roles["edge"] = childEdge }

const (
	memoryLimit = "memory.limit_in_bytes memory.max"
	// Contexts that say what a process at the edge read; others say what it made.
	edgeRead = 1 << 32
	edgeMade = 256 // names that it may use
)

// edge is a process whose control group gets no more memory. It posts what it does to one queue and
// reads another, so that what became of both is known afterwards.
type edge struct {
	d    *shm.Dir
	log  *cq.Writer
	kept *cq.Queue
}

// echo takes one entry and tells of it before it is released.
func (e *edge) echo() {
	es := shmtest.Needs(e.kept.PeekContext(context.Background(), 1))
	need(e.log.Post(&cq.Entry{Context: edgeRead + es[0].Context}))
	need(e.kept.Release(1))
}

// refused says what is wrong with a refusal: it must be one that a program can tell from others.
func (e *edge) refused(what string, err error, files string) {
	var no *shm.Error
	if !errors.Is(err, shm.ErrNoSpace) || !errors.Is(err, syscall.ENOSPC) || !errors.As(err, &no) ||
		no.Want.(uint64) <= no.Got.(uint64) {
		say("%s: %v", what, err)
	}
	if now := objects(e.d.Path()); now != files {
		say("%s: left %s, before %s", what, now, files)
	}
}

func childEdge() {
	// Who started the tests may be spared, and with it all its children.
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("0"), 0)
	d := shmtest.Needs(shm.OpenDir(""))
	e := edge{d: d}
	e.log = shmtest.Needs(cq.Attach(context.Background(), cq.Named(d, "log"), cq.WriterOptions{}))
	e.kept = shmtest.Needs(cq.Open(cq.Named(d, "kept"), cq.Options{Existing: true}))
	e.echo()
	kind := os.Getenv(envKind)
	if strings.HasPrefix(kind, "unseen") { // as in a container
		need(syscall.Mount("tmpfs", "/sys/fs/cgroup", "tmpfs", 0, ""))
	}
	memory := shmtest.Needs(syscall.Mmap(-1, 0, 32<<20, syscall.PROT_READ|syscall.PROT_WRITE,
		syscall.MAP_PRIVATE|syscall.MAP_ANON))
	say("started")
	var line string
	_, _ = fmt.Scanln(&line)
	switch kind {
	case "seen":
		e.larger()
		say("larger")
		_, _ = fmt.Scanln(&line)
		for range 2 {
			e.fill()
		}
	case "held":
		e.swell(memory)
	default:
		files := objects(d.Path())
		// Of a queue of this size most has no memory before it is used.
		_, err := cq.CreateEvents(cq.Named(d, "edge"), cq.EventOptions{Size: 1 << 17})
		e.refused("larger than the group", err, files)
	}
	e.echo()
	say("done")
	untilTold()
	need(errors.Join(e.log.Close(), e.kept.Detach(), d.Close()))
}

// larger makes queues that the group has no room for, of which either all or the lanes are large.
func (e *edge) larger() {
	files := objects(e.d.Path())
	for _, o := range []cq.Options{{Size: 1 << 20}, {Size: 1 << 22, MaxLanes: 1}} {
		q, err := cq.Create(cq.Named(e.d, "larger"), o)
		if err == nil {
			_, err = cq.Attach(context.Background(), cq.Named(e.d, "larger"), cq.WriterOptions{})
			need(q.Close())
		}
		e.refused("larger than the group", err, files)
		var no *shm.Error
		if errors.As(err, &no) && !strings.Contains(no.Field, "in memory cgroup") {
			say("larger than the group: %v", err)
		}
	}
}

// fill makes queues until there is no room for one more, and takes them away again.
func (e *edge) fill() {
	var all []io.Closer
	for i := range edgeMade {
		name := fmt.Sprint("edge-", i)
		files := objects(e.d.Path())
		q, err := cq.Create(cq.Named(e.d, name), cq.Options{Size: 8, MaxLanes: 2})
		if err == nil {
			all = append(all, q)
			need(e.log.Post(&cq.Entry{Context: uint64(i)}))
			say("made")
			e.echo()
			files = objects(e.d.Path())
			var w *cq.Writer
			if w, err = cq.Attach(context.Background(), cq.Named(e.d, name),
				cq.WriterOptions{}); err == nil {
				all = append(all, w)
				err = passes(q, w)
			}
		}
		if err != nil {
			e.refused(name, err, files)
			break
		}
		if i == edgeMade-1 {
			say("there is room for everything")
		}
	}
	for _, c := range slices.Backward(all) {
		need(c.Close())
	}
}

// swell writes to more pages than the group has, and asks the kernel for nothing else meanwhile.
func (e *edge) swell(memory []byte) {
	for at := 0; at < len(memory); at += os.Getpagesize() {
		memory[at] = 1
	}
	need(syscall.Munmap(memory))
}

// edgePeer is the other side of both queues, outside of the group.
type edgePeer struct {
	d                 *shm.Dir
	log               *cq.Queue
	kept              *cq.Writer
	logNews, keptNews *cq.EventQueue
	group             string
	c                 *child
	reader            cq.FID // of the one queue, for the news
	posted, read      uint64
	unsaid            int // of what it made and posted
	complaint         bytes.Buffer
	killerless        bool
}

func newEdgePeer(t *testing.T, kind string) *edgePeer {
	t.Helper()
	p := &edgePeer{d: openDir(t), group: cgroup(t, "memory", memoryLimit)}
	var err error
	p.log = shmtest.Got(cq.Create(cq.Named(p.d, "log"), cq.Options{Size: 1 << 11})).Or(t)
	t.Cleanup(func() { closeQueue(t, p.log) })
	p.logNews = newsOf(t, p.log.BindEvents, cq.EventOptions{})
	q, err := cq.Create(cq.Named(p.d, "kept"), cq.Options{Size: 1 << 10, Lifetime: cq.Persistent})
	must(t, err)
	must(t, q.Detach())
	p.kept = attach(t, p.d, "kept")
	_, p.keptNews = createEvents(t, cq.EventOptions{})
	must(t, p.kept.BindEvents(p.keptNews))
	for ; p.posted < uint64(p.kept.Stats().Size); p.posted++ {
		must(t, p.kept.Post(&cq.Entry{Context: p.posted}))
	}
	// One thread at a time: where the kernel refuses, it refuses threads too, and a Go program ends.
	cmd := shmtest.Child(t, "edge", envKind+"="+kind, "GOMAXPROCS=1")
	cmd.Stderr = &p.complaint
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("it said %s", &p.complaint)
		}
	})
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	p.c = start(t, cmd)
	p.c.Says(t, "started")
	ev, _ := nextPeer(t, p.keptNews)
	if p.reader = ev.FID; ev.Event != cq.EventPeerNew {
		t.Errorf("event %+v", ev)
	}
	return p
}

// confine gives the process a number of bytes beyond what it has.
func (p *edgePeer) confine(t *testing.T, limitBytes int) {
	t.Helper()
	set(t, p.group, "cgroup.procs", fmt.Sprint(p.c.Process.Pid))
	p.limit(t, limitBytes)
}

// limit is what the process is told to go on with.
func (p *edgePeer) limit(t *testing.T, limitBytes int) {
	t.Helper()
	set(t, p.group, memoryLimit, fmt.Sprint(limitBytes))
	// What does not fit is not to go to a disk. Of the two files a group has one.
	_ = os.WriteFile(filepath.Join(p.group, "memory.swap.max"), []byte("0"), 0)
	_ = os.WriteFile(filepath.Join(p.group, "memory.swappiness"), []byte("0"), 0)
	shmtest.Got(p.c.In.Write([]byte("\n"))).Or(t)
}

// withoutKiller makes the kernel refuse, or hold processes, where it would kill one. Only groups of
// version 1 can.
func (p *edgePeer) withoutKiller(t *testing.T) {
	t.Helper()
	f, err := os.OpenFile(p.group+"/memory.oom_control", os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString("1")
		err = errors.Join(err, f.Close())
	}
	shmtest.Require(t, "memory.oom_control", err)
	p.killerless = true
}

// value is a number of the group, which a file of either version has: kills, or whether
// processes are held.
func (p *edgePeer) value(name string) (n int) {
	for _, file := range []string{"memory.oom_control", "memory.events"} {
		text, _ := os.ReadFile(filepath.Join(p.group, file))
		for line := range strings.Lines(string(text)) {
			_, _ = fmt.Sscanf(line, name+" %d", &n)
		}
	}
	return n
}

// ended reports whether the process is there no more; nobody has waited for it yet.
func (p *edgePeer) ended() bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.c.Process.Pid))
	return err != nil || bytes.Contains(stat, []byte(") Z "))
}

// hears takes what the process says until it is done or dead, and reports which.
func (p *edgePeer) hears(t *testing.T) (alive bool) {
	t.Helper()
	for {
		line, err := p.c.Out.ReadString('\n')
		switch line = strings.TrimSpace(line); {
		case line == "done":
			return true
		case line == "made":
			p.unsaid--
		case err == nil:
			t.Error(line)
		default:
			_ = p.c.Wait()
			ws := p.c.ProcessState.Sys().(syscall.WaitStatus)
			killed := ws.Signal() == syscall.SIGKILL && p.value("oom_kill") > 0
			// A runtime that is refused a page or a thread gives up.
			gaveUp := p.killerless && ws.ExitStatus() == 2
			t.Logf("%v, after the kernel killed %d", p.c.ProcessState, p.value("oom_kill"))
			if !killed && !gaveUp {
				t.Error("it ended by itself")
			}
			return false
		}
	}
}

// reads takes what the process posted. What it made begins anew when it has filled its group.
func (p *edgePeer) reads(t *testing.T) {
	t.Helper()
	var made uint64
	for _, c := range drain(t, p.log) {
		switch {
		case c == edgeRead+p.read:
			p.read++
		case c == 0 || c == made:
			made = c + 1
			p.unsaid++
		default:
			t.Errorf("entry %#x, with %d read", c, p.read)
		}
	}
}

// settles checks that nothing published is lost, whatever became of the process, and that of what
// it made nothing stays that nobody can use.
func (p *edgePeer) settles(t *testing.T, alive bool) {
	t.Helper()
	pid := p.c.Process.Pid
	if alive {
		_ = p.c.Stop(t)
		p.reads(t)
		p.noNews(t)
	} else {
		wantDeath(t, p.logNews, p.log.FID(), cq.PeerWriter, pid)
		wantDeath(t, p.keptNews, p.reader, cq.PeerReader, pid)
		p.reads(t)
	}
	if p.unsaid < 0 || p.unsaid > 1 || alive && p.unsaid != 0 { // killed before it said the last
		t.Errorf("%d posts more than it made", p.unsaid)
	}
	must(t, p.kept.BindEvents(nil))
	p.collects(t)
	q := shmtest.Got(cq.Open(cq.Named(p.d, "kept"), cq.Options{Existing: true})).Or(t)
	got := drain(t, q)
	if !alive && len(got) > 0 && got[0]+1 == p.read {
		got = got[1:] // it told of that one and did not release it
	}
	if !slices.Equal(got, upTo(p.read, p.posted)) {
		t.Errorf("after %d that it read: %v", p.read, got)
	}
	must(t, passes(q, p.kept))
	closeQueue(t, q)
	must(t, passes(p.log, attach(t, p.d, "log")))
}

// noNews: neither side of the process is said to be dead.
func (p *edgePeer) noNews(t *testing.T) {
	t.Helper()
	noNews(t, p.logNews)
	ev := cq.Event{Payload: make([]byte, 0, 256)}
	if _, err := eqSread(p.keptNews, &ev, 0); !errors.Is(err, cq.ErrTimedOut) {
		t.Errorf("%v, %v", err, ev.Event)
	}
}

// collects removes what is provably garbage, as gc does: what nobody has any more.
func (p *edgePeer) collects(t *testing.T) {
	t.Helper()
	names := shmtest.Got(p.d.List()).Or(t)
	for _, n := range names {
		if !n.IsDir() {
			continue
		}
		err := collect.Remove(p.d, n.Name(), collect.Options{Waiting: true})
		if n.Name() == "log" || n.Name() == "kept" { // one has a reader, one entries
			wantErr(t, "collect "+n.Name(), err, cq.ErrBusy)
		} else if strings.HasPrefix(n.Name(), "edge") || shm.IsAside(n.Name()) {
			must(t, err)
		}
	}
	left := objects(p.d.Path())
	if strings.Contains(left, "/edge") || strings.Contains(left, "/new-") {
		t.Errorf("left: %s", left)
	}
}

// TestMemoryCgroupEdge: a process whose control group has no memory left is told so, held, or
// killed by the kernel: whatever it is, its peers outside of the group lose nothing, and hear of a
// death only if it is one.
//
// It is told where the library sees the limit. Where it does not, fallocate of tmpfs pages beyond
// the limit makes the kernel kill somebody in the group; it fails with ENOMEM where that is turned
// off. A page of the process's own memory beyond the limit kills it, or then holds it until there
// is one.
func TestMemoryCgroupEdge(t *testing.T) {
	t.Parallel()
	shmtest.Long(t)
	t.Run("seen", func(t *testing.T) {
		p := newEdgePeer(t, "seen")
		p.confine(t, 64<<20)
		p.c.Says(t, "larger") // what does not fit is refused, and nobody killed
		p.limit(t, 8<<20)
		p.settles(t, p.hears(t)) // which fails where the last page is wanted for other memory
	})
	t.Run("unseen", func(t *testing.T) {
		p := newEdgePeer(t, "unseen")
		p.confine(t, 16<<20)
		alive := p.hears(t)
		if alive {
			t.Error("it has made what does not fit")
		}
		p.settles(t, alive)
	})
	t.Run("unseen, without a killer", func(t *testing.T) {
		p := newEdgePeer(t, "unseen")
		p.withoutKiller(t)
		p.confine(t, 16<<20)
		p.settles(t, p.hears(t))
	})
	t.Run("held", func(t *testing.T) {
		p := newEdgePeer(t, "held")
		p.withoutKiller(t)
		p.confine(t, 16<<20)
		eventually(t, "it is held", func() bool { return p.value("under_oom") == 1 || p.ended() })
		if !p.ended() {
			p.noNews(t)
			_, err := cq.Open(cq.Named(p.d, "kept"), cq.Options{Existing: true})
			wantErr(t, "adopt it", err, syscall.EBUSY)
			wantErr(t, "remove it", collect.Remove(p.d, "kept", collect.Options{Waiting: true}), cq.ErrBusy)
			set(t, p.group, memoryLimit, fmt.Sprint(1<<30))
		}
		p.settles(t, p.hears(t))
	})
}
