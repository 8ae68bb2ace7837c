package fabric_test

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/fabric"
	"github.com/shmring/shmring/internal/shmtest"
)

const envCrowd = "SHMRING_TEST_CROWD" // own number / how many

func crowdName(i int) string { return fmt.Sprintf("crowd-%03d", i) }

// crowd sends a message to each of the others and waits for theirs.
func crowd() {
	var me, n int
	shmtest.Needs(fmt.Sscanf(os.Getenv(envCrowd), "%d/%d", &me, &n))
	e := shmtest.Needs(open(crowdName(me), fabric.Options{Peers: n, Chunks: 2}))
	fmt.Println("ready")
	shmtest.Needs(os.Stdin.Read(make([]byte, 1)))
	bufs := make([][8]byte, n)
	for i := range n - 1 {
		need(e.Recv(bufs[i][:], uint64(i)))
	}
	for k := 1; k < n; k++ {
		to := shmtest.Needs(e.Resolve(crowdName((me + k) % n)))
		need(e.SendContext(context.Background(), &fabric.Msg{Addr: to,
			Buf: binary.LittleEndian.AppendUint64(nil, uint64(me))}))
	}
	seen := make([]bool, n)
	for range 2 * (n - 1) {
		c, failed, err := e.next()
		need(err)
		if failed.Err != 0 {
			need(failed.Err)
		}
		if c.Flags&cq.FlagRecv == 0 {
			continue
		}
		from := binary.LittleEndian.Uint64(bufs[c.Context][:])
		if from >= uint64(n) || seen[from] || c.Len != 8 {
			need(fmt.Errorf("a message from %d of %d bytes", from, c.Len))
		}
		seen[from] = true
	}
	fmt.Println("done")
	untilTold()
	need(e.close())
}

var crowdSize = flag.Int("crowd", 24, "so many processes talk to each other")

// TestCrowd: all to all, each process with a lane to each other one and two chunks for what is
// long, in less memory than a share of 256 MiB for 300 of them; and in the end nothing is left.
func TestCrowd(t *testing.T) {
	n := *crowdSize
	if testing.Short() {
		n = 12
	}
	if most := 3 * uint64(n); limit(t) < most+64 {
		shmtest.Require(t, "descriptors", fmt.Errorf("%d descriptors are too few for %d processes",
			limit(t), n))
	}
	e := opened(t, "main", fabric.Options{Peers: 1})
	all := make([]*child, n)
	for i := range all {
		all[i] = start(t, "crowd", envCrowd+"="+strconv.Itoa(i)+"/"+strconv.Itoa(n))
	}
	for _, c := range all {
		c.Says(t, "ready")
	}
	for _, c := range all {
		shmtest.Got(c.In.Write([]byte("\n"))).Or(t)
	}
	for _, c := range all {
		c.Says(t, "done")
	}
	if used := bytesIn(t, e.d.Path()); used > 256<<20*int64(n)/300 {
		t.Errorf("%d processes have %d MiB of shared memory", n, used>>20)
	} else {
		t.Logf("%d processes have %d MiB of shared memory", n, used>>20)
	}
	for _, c := range all {
		must(t, c.In.Close())
	}
	for _, c := range all {
		must(t, c.Wait())
	}
	nothingLeft(t, e, "main")
}

func peerName(i int) string { return fmt.Sprintf("peer-%04d", i) }

// peers are endpoints each of which sends its number and waits for an echo.
func peers() {
	var first, each int
	shmtest.Needs(fmt.Sscanf(os.Getenv(envCrowd), "%d/%d", &first, &each))
	all := make([]*end, each)
	for i := range all {
		n := first + i
		all[i] = shmtest.Needs(openSized("", peerName(n), 4, fabric.Options{Peers: 1, Chunks: -1}))
		to := shmtest.Needs(all[i].Resolve("main"))
		need(all[i].Inject(binary.LittleEndian.AppendUint64(nil, uint64(n)), to))
	}
	buf := make([]byte, 8)
	for i, e := range all {
		need(e.Recv(buf, 0))
		_, failed, err := e.next()
		need(err)
		if got := binary.LittleEndian.Uint64(buf); failed.Err != 0 || got != uint64(first+i) {
			need(fmt.Errorf("%s has %d: %v", peerName(first+i), got, failed.Err))
		}
	}
	fmt.Println("done")
	untilTold()
	for _, e := range all {
		need(e.close())
	}
}

var mostPeers = flag.Int("peers", 64, "an endpoint talks to so many others")

// TestMostPeers: an endpoint talks to many others, of four processes, with one descriptor for each
// process at most. One more peer is refused by name.
func TestMostPeers(t *testing.T) {
	const processes = 4
	each := *mostPeers / processes
	e := opened(t, "main", fabric.Options{Peers: processes * each})
	more := opened(t, "more", fabric.Options{Peers: 1})
	before := len(shmtest.Descriptors())
	all := make([]*child, processes)
	for i := range all {
		all[i] = start(t, "peers", fmt.Sprintf("%s=%d/%d", envCrowd, i*each, each))
	}
	pipes := len(shmtest.Descriptors()) - before
	buf := make([]byte, 8)
	for range processes * each {
		must(t, e.Recv(buf, 0))
		polled(t, e)
		to := e.knows(t, peerName(int(binary.LittleEndian.Uint64(buf))))
		must(t, e.Inject(buf, to))
	}
	for _, c := range all {
		c.Says(t, "done")
	}
	if n := len(shmtest.Descriptors()) - before - pipes; n > processes {
		t.Errorf("%d descriptors for peers of %d processes", n, processes)
	}
	if n := candidates(t, e); n > 2 { // the two lanes of one peer are not worth a system call
		t.Errorf("%d lanes of idle peers are looked at", n)
	}
	shmtest.WantErr(t, "a send of one more", more.Inject(buf, more.knows(t, "main")),
		fabric.ErrPeers)
	shmtest.WantErr(t, "a send to one more", e.Inject(buf, e.knows(t, "more")), fabric.ErrPeers)
	for _, c := range all {
		c.Stop(t)
	}
}

// polled waits for a completion without sleep: a sleep would cool all lanes.
func polled(t *testing.T, e *end) {
	t.Helper()
	var dst [1]cq.Entry
	for {
		switch _, err := cq.Read(e.q, dst[:]); err {
		case nil:
			return
		case cq.ErrWouldBlock:
			runtime.Gosched()
		default:
			t.Fatal(err)
		}
	}
}

// candidates returns how many lanes an endpoint looks at that nobody has rung for.
func candidates(t *testing.T, e *end) (n int) {
	t.Helper()
	b := e.Bell()
	for range 10_000 { // until lanes that had messages have cooled
		e.steps(t)
	}
	b.Lock()
	defer b.Unlock()
	for bit := b.Next(0); bit >= 0; bit = b.Next(bit + 1) {
		n++
	}
	return n
}

func limit(t *testing.T) uint64 {
	t.Helper()
	var l syscall.Rlimit
	must(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l))
	return l.Max
}

// bytesIn sums up what the files of a directory take.
func bytesIn(t *testing.T, dir string) (sum int64) {
	t.Helper()
	files := shmtest.Got(os.ReadDir(dir)).Or(t)
	for _, f := range files {
		var st syscall.Stat_t
		err := syscall.Stat(filepath.Join(dir, f.Name()), &st)
		if !errors.Is(err, syscall.ENOENT) {
			must(t, err)
			sum += st.Blocks * 512
		}
	}
	return sum
}
