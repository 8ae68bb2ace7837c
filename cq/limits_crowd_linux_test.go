package cq_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// statusField returns a number of /proc/self/status.
func statusField(t testing.TB, name string) int {
	t.Helper()
	return statusOf(t, []int{os.Getpid()}, name)[0]
}

// limitsFull has as many writers and queues as the documents say.
var limitsFull = flag.Bool("limits.full", false,
	"1,000 writers of one queue and 10,000 queues in one set, instead of a fifth of that")

// crowd is so many, or a part of that: whoever attaches looks at the lanes of all before it.
func crowd(full int) int {
	switch {
	case *limitsFull:
		return full
	case testing.Short():
		return full / 50
	}
	return full / 5
}

// TestThousandWriters: 1,000 writers in 20 processes post to one queue, and a quarter of them is
// killed meanwhile. Of each writer everything comes in order, of those that live all. The reader
// needs no thread more for them.
func TestThousandWriters(t *testing.T) {
	shmtest.Long(t)
	const lanes, each = 50, 60
	processes := crowd(1000) / lanes
	doomed := processes / 4
	_, q := create(t, cq.Options{Size: each, MaxLanes: 1024, Format: cq.FormatTagged})
	threads := statusField(t, "Threads")
	var cs []*child
	for range processes {
		cs = append(cs, startChild(t, "writer", envQueue+"="+q.Name(),
			fmt.Sprint(envLanes, "=", lanes), fmt.Sprint(envCount, "=", each)))
	}
	var owner [1025]int
	for i, c := range cs {
		for range lanes {
			var lane int
			shmtest.Got(fmt.Sscanf(c.Line(t), "lane %d", &lane)).Or(t)
			owner[lane] = i
		}
	}
	next := account{}
	kept, living := 0, 0 // entries of writers that live, and how many those have to become
	take := func() {
		buf := make([]cq.Tagged, 64)
		n := shmtest.Got(sread(q, buf, time.Minute)).Or(t)
		next.saw(t, buf[:n])
		for _, e := range buf[:n] {
			if owner[e.Context] >= doomed {
				kept++
			}
		}
	}
	for living = (processes - doomed) * lanes * each; kept < living/3; {
		take()
	}
	for _, c := range cs[:doomed] {
		c.Kill()
	}
	for kept < living {
		take()
	}
	threadsNow := statusField(t, "Threads")
	if threadsNow > threads+threadSlack {
		t.Errorf("%d threads, before %d", threadsNow, threads)
	}
	for _, c := range cs[doomed:] {
		_ = c.Stop(t)
	}
	reportLimits(t, "%d writers in %d processes, of which %d were killed; %d entries of the living"+
		" posted and read, 0 lost, each lane in order; threads of the reader %d, before %d; its"+
		" memory %d", processes*lanes, processes, doomed, kept, threadsNow, threads,
		statusField(t, "VmHWM"))
}

// TestTenThousandBlocked: goroutines that wait for completions take no thread each, and each gets
// its own.
func TestTenThousandBlocked(t *testing.T) {
	shmtest.Long(t)
	const queues, waiters = 50, 200
	d := openDir(t)
	before := statusField(t, "Threads")
	var all, begun sync.WaitGroup
	begun.Add(queues * waiters)
	var qs []*cq.Queue
	var ws []*cq.Writer
	var got [queues][waiters]int
	var mu sync.Mutex
	for i := range queues {
		q, err := cq.Create(cq.Named(d, fmt.Sprintf("crowd-%d", i)), cq.Options{Size: 256, Shared: true})
		must(t, err)
		w := shmtest.Got(cq.Attach(t.Context(), cq.Named(d, q.Name()), cq.WriterOptions{})).Or(t)
		qs, ws = append(qs, q), append(ws, w)
		for range waiters {
			all.Go(func() {
				one := make([]cq.Context, 1)
				begun.Done()
				n, err := cq.ReadContext(context.Background(), q, one, cq.ReadOptions{})
				if n != 1 || err != nil {
					t.Errorf("read %d, %v", n, err)
					return
				}
				mu.Lock()
				got[i][one[0].Context]++
				mu.Unlock()
			})
		}
	}
	// A thread for each of the first 32, then one for 127.
	const most = 32 + queues*waiters/127 + 1 + threadSlack
	begun.Wait()
	time.Sleep(300 * time.Millisecond) // with a thread each there were thousands by now
	threads := statusField(t, "Threads")
	if threads > before+most {
		t.Errorf("%d threads, before %d", threads, before)
	}
	for _, w := range ws {
		post(t, w, 0, waiters)
	}
	all.Wait()
	for i, w := range ws {
		must(t, w.Close())
		must(t, qs[i].Close())
		for j, n := range got[i] {
			if n != 1 {
				t.Errorf("queue %d: completion %d came %d times", i, j, n)
			}
		}
	}
	reportLimits(t, "%d goroutines blocked on %d queues: %d threads, before %d; memory %d; each was"+
		" given one completion, none lost, none twice", queues*waiters, queues, threads, before,
		statusField(t, "VmHWM"))
}

// threadSlack is how many threads the runtime may start for reasons of its own: one for each that
// is in the middle of a system call when the machine takes its processor away.
const threadSlack = 100

var slowFor = flag.Duration("limits.slow", 700*time.Millisecond,
	"how long TestSlowReader is slow; 1m is what was asked for once")

// slowRun is what a reader has seen of each lane.
type slowRun struct {
	q    *cq.Queue
	next account
	buf  []cq.Tagged
}

// take reads for a time, with a pause after each batch, and returns how many entries a second that
// were.
func (r *slowRun) take(t *testing.T, d, pause time.Duration) float64 {
	begin, all := time.Now(), 0
	for time.Since(begin) < d {
		n := shmtest.Got(sread(r.q, r.buf, time.Minute)).Or(t)
		r.next.saw(t, r.buf[:n])
		all += n
		time.Sleep(pause)
	}
	return float64(all) / time.Since(begin).Seconds()
}

// TestSlowReader: writers that could be a hundred times faster than the reader wait for it. Nothing
// is lost, and neither of the two grows.
func TestSlowReader(t *testing.T) {
	shmtest.Long(t)
	_, q := create(t, cq.Options{Size: 256, Format: cq.FormatTagged})
	pids := []int{os.Getpid()}
	var cs []*child
	for range 2 {
		c := startChild(t, "writer", envQueue+"="+q.Name(), envLanes+"=2")
		_, _ = c.Line(t), c.Line(t)
		cs, pids = append(cs, c), append(pids, c.Process.Pid)
	}
	// From here on the most memory is that of this test.
	must(t, os.WriteFile("/proc/self/clear_refs", []byte("5"), 0))
	r := &slowRun{q: q, next: account{}, buf: make([]cq.Tagged, 64)}
	fast := r.take(t, 300*time.Millisecond, 0)
	memory, threads := statusOf(t, pids, "VmHWM"), statusOf(t, pids, "Threads")
	// So long that the same number of entries takes a hundred times as long, unless the machine
	// stood still before.
	pause := min(100*float64(len(r.buf))/fast, slowFor.Seconds()/4)
	slow := r.take(t, *slowFor, time.Duration(pause*float64(time.Second)))
	most, threadsNow := statusOf(t, pids, "VmHWM"), statusOf(t, pids, "Threads")
	again := r.take(t, 300*time.Millisecond, 0)
	posted, refused := r.rest(t, cs)
	read := uint64(0)
	for lane, n := range posted {
		read += r.next[lane]
		if r.next[lane] != n {
			t.Errorf("lane %d: %d entries read, %d posted", lane, r.next[lane], n)
		}
	}
	if refused == 0 {
		t.Error("the writers were not slowed down")
	}
	for i := range pids {
		const slack = 8 << 10 // KiB
		if most[i] > memory[i]+slack {
			t.Errorf("process %d has grown from %d to %d KiB", i, memory[i], most[i])
		}
		if threadsNow[i] > threads[i]+threadSlack {
			t.Errorf("process %d has %d threads, before %d", i, threadsNow[i], threads[i])
		}
	}
	reportLimits(t, "4 writers in 2 processes, %.0f entries a second to a reader at full speed,"+
		" %.0f for %v to a slow one, then %.0f; %d posts refused meanwhile for want of room,"+
		" %d entries posted and read, 0 lost, all in order; memory of the reader and of the"+
		" writers %v, before the reader was slow %v; threads %v, before %v",
		fast, slow, *slowFor, again, refused, read, most, memory, threadsNow, threads)
}

// rest tells the writers to end and reads what they leave. It returns what they posted to each
// lane, and how often they had no room.
func (r *slowRun) rest(t *testing.T, cs []*child) (posted account, refused int) {
	t.Helper()
	posted = account{}
	for _, c := range cs {
		must(t, c.In.Close())
	}
	for _, c := range cs {
		for range 2 {
			var lane, full int
			var n uint64
			shmtest.Got(fmt.Sscan(c.Line(t), &lane, &n, &full)).Or(t)
			posted[lane] = n
			refused += full
		}
		_ = c.Stop(t)
	}
	eventually(t, "all is read", func() bool {
		n, _ := cq.Read(r.q, r.buf)
		r.next.saw(t, r.buf[:max(n, 0)])
		for lane, all := range posted {
			if r.next[lane] < all {
				return false
			}
		}
		return true
	})
	return posted, refused
}

// statusOf returns a number of /proc/PID/status of each process.
func statusOf(t testing.TB, pids []int, name string) (out []int) {
	t.Helper()
	for _, pid := range pids {
		text := shmtest.Got(os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))).Or(t)
		found := false
		for line := range strings.Lines(string(text)) {
			if f := strings.Fields(line); len(f) > 1 && f[0] == name+":" {
				n := shmtest.Got(strconv.Atoi(f[1])).Or(t)
				out, found = append(out, n), true
			}
		}
		if !found {
			t.Fatalf("no %s in the status of %d", name, pid)
		}
	}
	return out
}

// TestDescriptors: how many descriptors there are for a named queue and its writers while nobody
// waits by one.
func TestDescriptors(t *testing.T) {
	d := openDir(t)
	takes := func(what string, want int) {
		t.Helper()
		got := 0
		for _, to := range shmtest.Descriptors() {
			if strings.HasPrefix(to, d.Path()+"/") {
				got++
			}
		}
		if got != want {
			t.Errorf("%s: %d descriptors, want %d", what, got, want)
		}
	}
	q := shmtest.Got(cq.Create(cq.Named(d, "q"), cq.Options{Size: 8})).Or(t)
	takes("a queue", 1)
	own := shmtest.Got(q.Writer()).Or(t)
	takes("with its own writer", 1)
	post(t, own, 1, 2)
	dst := make([]cq.Context, 2)
	if n, err := cq.Read(q, dst); n != 1 {
		t.Fatal(n, err)
	}
	w := attach(t, d, "q")
	takes("and one of another process, in this one", 3)
	post(t, w, 1, 2)
	if n, err := cq.Read(q, dst); n != 1 {
		t.Fatal(n, err)
	}
	takes("whose lane the reader has seen", 4)
	must(t, errors.Join(own.Close(), q.Detach()))
	takes("the writer alone", 2)
	q = shmtest.Got(cq.Open(cq.Named(d, "q"), cq.Options{Existing: true})).Or(t)
	takes("an adopted queue, a lane, and its writer", 4)
	must(t, errors.Join(w.Close(), q.Close()))
	takes("nothing", 0)
}

// TestManyQueues: 10,000 named queues, or as many as descriptors and memory allow, are in one wait
// set, which returns just those that have something.
func TestManyQueues(t *testing.T) {
	shmtest.Conforms(t)
	var limit unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	n := min(crowd(10_000), int(min(limit.Cur, 1<<20))-256)
	d := openDir(t)
	set := shmtest.Got(cq.NewWaitSet(d, cq.WaitSetOptions{})).Or(t)
	all := make([]io.Closer, 0, 2*n+1)
	defer func() { must(t, cq.CloseAll(all...)) }()
	all = append(all, set)
	var posts []*cq.Writer
	for i := range n {
		q, err := cq.Create(cq.Named(d, fmt.Sprint("q", i)), cq.Options{Size: 2, MaxLanes: 1})
		if i > 0 && errors.Is(err, shm.ErrNoSpace) {
			t.Logf("there is memory for %d queues", i)
			break
		}
		must(t, err)
		all = append(all, q)
		must(t, set.Add(q))
		if i%97 == 0 {
			w := shmtest.Got(q.Writer()).Or(t)
			posts, all = append(posts, w), append(all, w)
		}
	}
	for i, w := range posts {
		post(t, w, uint64(i), uint64(i)+1)
	}
	ready, dst := make([]cq.Waitable, 7), make([]cq.Context, 2)
	for left := len(posts); left > 0; {
		k := shmtest.Got(set.Wait(t.Context(), ready, cq.WaitOptions{Timeout: time.Minute})).Or(t)
		for _, m := range ready[:k] {
			if got, err := cq.Read(m.(*cq.Queue), dst); got != 1 {
				t.Fatal(got, err)
			}
			left--
		}
	}
	if _, err := set.Wait(t.Context(), ready, cq.WaitOptions{Timeout: time.Nanosecond}); err == nil {
		t.Error("the set has more than was posted")
	}
}
