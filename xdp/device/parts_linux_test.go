package device

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shmring/shmring/internal/packet"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp"
)

// TestHelloBytes: programs of before say and understand the same.
func TestHelloBytes(t *testing.T) {
	t.Parallel()
	h := hello{step: stepDone, status: 2, frames: 3, sends: 4, generation: 5, maxPayload: 6, rxLane: 7,
		txLane: 8, slotBytes: 9, wrongSums: true, inPlace: true, ports: []uint16{10}, text: "t"}
	want := "shmrdev\n\x01\x00\x08\x00\x02\x00\x00\x00\x03\x00\x00\x00\x04\x00\x00\x00" +
		"\x05\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x06\x00\x00\x00\x07\x00\x00\x00" +
		"\x08\x00\x00\x00\x09\x00\x00\x00\x03\x00\x00\x00" + strings.Repeat("\x00", 8) + "\x0a" +
		strings.Repeat("\x00", 63) + "t" + strings.Repeat("\x00", 127)
	if got := string(h.encode()); got != want {
		t.Errorf("%q", got)
	}
	if got, err := decodeHello([]byte(want)); err != nil || !reflect.DeepEqual(got, h) {
		t.Errorf("got %+v, %v", got, err)
	}
}

// TestHelloRefuses: every byte of a message has one meaning, or must be zero.
func TestHelloRefuses(t *testing.T) {
	t.Parallel()
	good := (&hello{step: stepHello, ports: []uint16{7}, text: "x"}).encode()
	change := func(at int, b byte) []byte {
		out := append([]byte(nil), good...)
		out[at] = b
		return out
	}
	for name, c := range map[string]struct {
		b   []byte
		err error
	}{
		"status":        {change(15, 1), ErrProtocol},
		"too many":      {change(32, maxPorts+1), ErrProtocol},
		"unknown flag":  {change(52, 4), ErrProtocol},
		"another flag":  {change(55, 1), ErrProtocol},
		"reserved":      {change(56, 1), ErrProtocol},
		"unused port":   {change(offPorts+2, 1), ErrProtocol},
		"text":          {change(offText, 7), ErrProtocol},
		"zero in text":  {change(offText+2, 'y'), ErrProtocol},
		"behind":        {change(offTextEnd, 1), ErrProtocol},
		"the last byte": {change(helloBytes-1, 1), ErrProtocol},
	} {
		if _, err := decodeHello(c.b); !errors.Is(err, c.err) {
			t.Errorf("%s: %v, want %v", name, err, c.err)
		}
	}
}

// FuzzHello: what decodes is what encodes to the same bytes, and nothing makes the decoder fail in
// any other way than by an error.
func FuzzHello(f *testing.F) {
	f.Add((&hello{step: stepHello, ports: []uint16{1, 2, 3}, text: "application"}).encode())
	f.Add((&hello{step: stepGrant, frames: 9, sends: 8, generation: 7}).encode())
	f.Add([]byte(protocol.Magic))
	b := make([]byte, helloBytes)
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := decodeHello(b)
		if err != nil {
			if !errors.Is(err, ErrProtocol) && !errors.Is(err, shm.ErrVersion) {
				t.Fatalf("untyped: %v", err)
			}
			return
		}
		if string(h.encode()) != string(b) {
			t.Fatalf("%x decodes to %+v, which is %x", b, h, h.encode())
		}
		_ = h.expect(stepHello)
	})
}

func TestAllow(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"uid:1000", "gid:7,ports=1-65535", "uid:0,ports=53-53,frames=1," +
		"sends=2,rules=3,apps=4", "uid:1,destinations=5,memory=6",
		"uid:1,to=any", "gid:1,ports=5-6,to=any,apps=4"} {
		a, err := ParseAllow(text)
		if err != nil || a.String() != text {
			t.Errorf("%q: %q, %v", text, a, err)
		}
		if _, err := a.resolve(); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
	if a, err := ParseAllow("uid:5,ports=80"); err != nil || a.First != 80 || a.Last != 80 {
		t.Errorf("%+v, %v", a, err)
	}
	for _, text := range []string{"", "1000", "uid:", "uid:-1", "user:1", "uid:4294967296",
		"uid:1,", "uid:1,ports=", "uid:1,ports=0", "uid:1,ports=9-8", "uid:1,ports=1-65536",
		"uid:1,frames=0", "uid:1,frames=-1", "uid:1,frames=99999999", "uid:1,memory=0", "uid:1,what=1",
		"uid:1,frames", "uid:1,to=", "uid:1,to=192.0.2.1"} {
		if a, err := ParseAllow(text); !errors.Is(err, ErrOptions) {
			t.Errorf("%q: %+v, %v", text, a, err)
		}
	}
}

// TestAccount: what is taken is given back, and nobody takes more than there is.
func TestAccount(t *testing.T) {
	t.Parallel()
	a := shmtest.Got(Allow{Frames: 10, Sends: 5, Rules: 2}.resolve()).Or(t)
	c := account{Allow: a}
	must(t, c.book(10, 5, 2))
	for _, b := range [][3]int{{1, 0, 0}, {0, 1, 0}, {0, 0, 1}, {1 << 40, 0, 0}} {
		if err := c.book(b[0], b[1], b[2]); !errors.Is(err, ErrBudget) {
			t.Errorf("%v: %v", b, err)
		}
	}
	c.unbook(10, 5, 2)
	if c.frames != 0 || c.sends != 0 || c.rules != 0 {
		t.Errorf("%+v", c)
	}
}

// TestPool: random hand-outs and returns, right ones and wrong ones.
func TestPool(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	const frames = 16
	p := newPool(frames)
	r := rand.New(rand.NewPCG(1, 2))
	out := map[uint32]uint32{}
	var next uint32 = 1<<32 - 1000 // generations wrap
	var stale uint64
	for range 100000 {
		switch r.IntN(3) {
		case 0:
			id, ok := p.loan(next)
			if ok != (len(out) < frames) {
				t.Fatalf("loan with %d out: %v", len(out), ok)
			}
			if _, twice := out[id]; ok && twice {
				t.Fatalf("frame %d has two owners", id)
			}
			if ok {
				out[id] = next
				next++
			}
		case 1:
			for id, g := range out {
				if !p.giveBack(uint64(id), uint64(g)) {
					t.Fatalf("frame %d of %d refused", id, g)
				}
				delete(out, id)
				if p.giveBack(uint64(id), uint64(g)) {
					t.Fatalf("frame %d taken twice", id)
				}
				stale++
				break
			}
		case 2:
			id, g := uint64(r.IntN(2*frames)), uint64(next)+uint64(r.IntN(5))
			if p.giveBack(id, g) {
				t.Fatalf("frame %d of %d was never out", id, g)
			}
			stale++
		}
		if len(p.free)+p.out != frames || p.out != len(out) || p.stale != stale {
			t.Fatalf("%d free, %d out, want %d out; %d stale, want %d", len(p.free), p.out,
				len(out), p.stale, stale)
		}
	}
}

// TestReports: of a cause that does not end a few are told, then how many were not; of another one
// the first is told all the same, and nothing is uncounted.
func TestReports(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	told, left := map[error]int{}, map[error]int{}
	r := &reports{tell: func(err error) {
		mu.Lock()
		defer mu.Unlock()
		var o *omittedError
		if errors.As(err, &o) {
			if o.count < 1 || !strings.Contains(err.Error(), fmt.Sprint(o.count)) {
				t.Errorf("%+v", o)
			}
			left[causeOf(err)] += o.count
			return
		}
		told[causeOf(err)]++
	}}
	counts := map[error]int{ErrBudget: 300, ErrProtocol: 2, syscall.EMFILE: 100, nil: 100}
	var all sync.WaitGroup
	for cause, n := range counts {
		all.Go(func() {
			for i := range n {
				err := fmt.Errorf("number %d", i)
				if cause != nil {
					err = failed("flood", "", fmt.Errorf("%w: number %d", cause, i), "")
				}
				r.add(err)
			}
		})
	}
	all.Wait()
	r.close()
	for cause, n := range counts {
		if told[cause]+left[cause] != n || n > 50 && told[cause] > n/2 || told[cause] == 0 {
			t.Errorf("%v: %d, told %d, left out %d", cause, n, told[cause], left[cause])
		}
	}
	if told[ErrProtocol] != 2 {
		t.Errorf("of two, %d were told", told[ErrProtocol])
	}
	(&reports{}).add(ErrBudget) // nobody wants to know
}

// TestReportsForEver: at whatever pace errors of one cause come, or of all causes in turn, only so
// many lines a minute are told, and all are counted; after a quiet time it begins anew.
func TestReportsForEver(t *testing.T) {
	shmtest.Long(t)
	const minutes = 30
	for _, c := range []struct {
		pause  time.Duration
		causes []error
		most   int // lines, in all minutes
	}{
		// Eight at first, one in each window of two seconds and more, and what each left out.
		{time.Second / 8, []error{ErrBudget}, 8 + 2*(6+minutes)},
		{time.Second / 7, []error{ErrBudget}, 8 + 2*(6+minutes)},
		{time.Millisecond * 10, []error{ErrBudget}, 8 + 2*(6+minutes)},
		{time.Second * 3, []error{ErrBudget}, 8 + 2*(6+minutes)},
		{time.Millisecond * 10, causesOf, len(causesOf) * (8 + 2*(6+minutes))},
	} {
		synctest.Test(t, func(t *testing.T) {
			var mu sync.Mutex
			lines, single, counted, first := 0, 0, 0, 0
			begin := time.Now()
			r := &reports{tell: func(err error) {
				mu.Lock()
				defer mu.Unlock()
				var o *omittedError
				if lines++; errors.As(err, &o) {
					counted += o.count
				} else {
					single++
					if time.Since(begin) < lastWindow {
						first++
					}
				}
			}}
			n := 0
			for ; time.Since(begin) < minutes*time.Minute; n++ {
				r.add(c.causes[n%len(c.causes)])
				time.Sleep(c.pause)
			}
			synctest.Wait()
			mu.Lock()
			if lines > c.most || lines < minutes || first > reportsOfAll {
				t.Errorf("every %v, %d causes: %d lines, of which %d may be, %d errors at first",
					c.pause, len(c.causes), lines, c.most, first)
			}
			mu.Unlock()
			time.Sleep(3 * lastWindow)
			before := single
			for range reportsAtFirst {
				r.add(c.causes[0])
			}
			if single != before+reportsAtFirst {
				t.Errorf("after a quiet time %d of %d are told", single-before, reportsAtFirst)
			}
			if r.close(); single+counted != n+reportsAtFirst {
				t.Errorf("of %d, %d were told and %d counted", n+reportsAtFirst, single, counted)
			}
		})
	}
}

// TestStatuses: what the server says no for has a number, and means the same to the application,
// which is told what to do about it.
func TestStatuses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		why, means error
		num        syscall.Errno
	}{
		{syscall.EMFILE, ErrNoFiles, syscall.EMFILE}, {syscall.ENFILE, ErrNoFiles, syscall.EMFILE},
		{shm.ErrNoSpace, ErrNoMemory, syscall.ENOSPC}, {errClosing, ErrClosing, syscall.ESHUTDOWN},
		{os.ErrDeadlineExceeded, ErrSlow, syscall.ETIMEDOUT},
		{fmt.Errorf("%w: %w", ErrSlow, syscall.EIO), ErrSlow, syscall.ETIMEDOUT},
		{fmt.Errorf("%w: frames", ErrBudget), ErrBudget, syscall.EDQUOT},
		{shm.ErrVersion, shm.ErrVersion, syscall.EPROTONOSUPPORT},
		{ErrRefused, ErrRefused, syscall.EACCES}, {ErrPortTaken, ErrPortTaken, syscall.EADDRINUSE},
		{ErrProtocol, ErrProtocol, syscall.EPROTO}, {ErrOptions, ErrOptions, syscall.EINVAL},
		{errors.New(strings.Repeat("ä", 200)), ErrProtocol, syscall.EPROTO}, // and no number
	} {
		no := refusal(stepGrant, failed("try", "", c.why, ""))
		h := shmtest.Got(decodeHello(no.encode())).Or(t)
		err := h.expect(stepGrant)
		if !errors.Is(err, c.means) || !errors.Is(err, c.num) ||
			!strings.Contains(err.Error(), "says: device: try") {
			t.Errorf("%v became %v", c.why, err)
		}
		if hintOf(err) == "" && c.means != ErrProtocol && c.means != ErrOptions {
			t.Errorf("%v: no hint", err)
		}
	}
}

// fullTable is a resolver with few places, which knows an address the second time it is asked.
type fullTable struct {
	places int
	asked  map[netip.Addr]int
	never  bool // knows nothing
	calls  int
}

func (f *fullTable) Lookup(dst netip.Addr) (xdp.Hop, error) {
	f.calls++
	if f.asked[dst] == 0 && len(f.asked) >= f.places {
		return xdp.Hop{}, syscall.ENOBUFS
	}
	if f.asked[dst]++; f.asked[dst] == 1 || f.never {
		return xdp.Hop{}, packet.ErrResolving
	}
	return xdp.Hop{Source: netip.AddrFrom4([4]byte{192, 0, 2, 1}), Generation: 1}, nil
}

func (f *fullTable) Forget(dst netip.Addr) { delete(f.asked, dst) }

func numbered(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{198, 51, byte(i >> 8), byte(i)})
}

// TestWays: a line of the allow-list that sends everywhere forgets its own destinations and no
// others', also such as another line uses too.
func TestWays(t *testing.T) {
	t.Parallel()
	table := &fullTable{places: 32, asked: map[netip.Addr]int{}}
	all := newHolders(table)
	greedy, modest := newWays(all, 16), newWays(all, 16)
	both := numbered(3)
	find := func(w *ways, to netip.Addr) {
		t.Helper()
		for try := range 3 {
			if _, err := w.lookup(to); err == nil {
				return
			} else if !errors.Is(err, packet.ErrResolving) || try == 2 {
				t.Fatalf("%v: %v", to, err)
			}
		}
	}
	find(modest, both)
	for i := range 4096 {
		find(greedy, numbered(i))
		if i%64 == 0 { // as if nothing were
			find(modest, numbered(5000+i/64%12))
		}
	}
	before := table.calls
	find(modest, both)
	if table.calls != before+1 {
		t.Error("a destination of the one was forgotten for the other's sake")
	}
	if n := len(table.asked); n > 32 || len(all.uses) != n || len(greedy.held) != 16 {
		t.Errorf("%d places, %d in use, %d of the greedy one", n, len(all.uses), len(greedy.held))
	}
	// The one used last is not the one to go.
	find(greedy, numbered(4095-15))
	find(greedy, numbered(4096))
	before = table.calls
	find(greedy, numbered(4095-15))
	if table.calls != before+1 {
		t.Error("the destination used last was forgotten")
	}
}

// TestWaysAsking: questions without an answer are bounded too, and come back when nobody waits.
func TestWaysAsking(t *testing.T) {
	t.Parallel()
	table := &fullTable{places: 1 << 20, asked: map[netip.Addr]int{}, never: true}
	w := newWays(newHolders(table), 4096)
	for i := range 2 * maxAsking {
		if _, err := w.lookup(numbered(i)); !errors.Is(err, packet.ErrResolving) {
			t.Fatal(err)
		}
	}
	if len(table.asked) != maxAsking || w.asking != maxAsking {
		t.Errorf("%d questions, %d counted", len(table.asked), w.asking)
	}
	for i := range 2 * maxAsking {
		w.giveUp(numbered(i))
	}
	if len(table.asked) != 0 || w.asking != 0 || len(w.held) != 0 {
		t.Errorf("%d questions, %d counted, %d held", len(table.asked), w.asking, len(w.held))
	}
}
