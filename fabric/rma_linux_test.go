package fabric_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/fabric"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

const (
	remoteBytes = 8 << 20
	toldFlags   = cq.FlagRMA | cq.FlagRemoteWrite | cq.FlagRemoteCQData | cq.FlagNoContext
	allAccess   = cq.FlagRemoteRead | cq.FlagRemoteWrite | cq.FlagAtomic
)

// keeper has memory that others reach, and does what it is told.
func keeper() {
	e := shmtest.Needs(open("keeper", fabric.Options{Remote: remoteBytes}))
	var r *fabric.Region
	lines := bufio.NewScanner(os.Stdin)
	fmt.Println("ready")
	for lines.Scan() {
		var n int
		var access cq.Flags
		switch _, _ = fmt.Sscanf(lines.Text(), "register %d %d", &n, &access); lines.Text() {
		case "close":
			need(r.Close())
			fmt.Println("closed")
		case "right": // the bytes are those that main writes
			fmt.Println(bytes.Equal(r.Bytes(), pattern(len(r.Bytes()))))
		case "next":
			c, failed, err := e.next()
			need(err)
			fmt.Println(c.Flags == toldFlags, c.Len, c.Data, c.Context, failed.Err)
		default:
			r = shmtest.Needs(e.Register(n, access))
			copy(r.Bytes(), pattern(n))
			clear(r.Bytes()[n/2:])
			fmt.Println(r.Key())
		}
	}
	need(e.close())
}

// tell has a keeper do something, and returns what it says.
func (c *child) tell(t testing.TB, format string, args ...any) string {
	t.Helper()
	shmtest.Got(fmt.Fprintf(c.In, format+"\n", args...)).Or(t)
	line := shmtest.Got(c.Out.ReadString('\n')).Or(t)
	return line[:len(line)-1]
}

// region has a keeper register memory, and returns the key.
func (c *child) region(t testing.TB, n int, access cq.Flags) (at fabric.Remote) {
	t.Helper()
	shmtest.Got(fmt.Sscan(c.tell(t, "register %d %d", n, uint64(access)), &at.Key)).Or(t)
	return at
}

func besideKeeper(t *testing.T, o fabric.Options) (*end, *child, cq.Addr) {
	t.Helper()
	e := opened(t, "main", o)
	c := started(t, "keeper")
	to := e.knows(t, "keeper")
	return e, c, to
}

// nothing fails if something completed.
func nothing(t *testing.T, e *end) {
	t.Helper()
	var c [1]cq.Entry
	if n, err := cq.Read(e.q, c[:]); n != 0 || err != cq.ErrWouldBlock {
		t.Errorf("completed: %+v, %v", c, err)
	}
}

// TestRMA: bytes are read and written in memory of a process that calls nothing meanwhile, whole or
// in pieces, and both complete at once, with the flags of what they are. It is told of data alone.
func TestRMA(t *testing.T) {
	shmtest.Conforms(t)
	e, c, to := besideKeeper(t, fabric.Options{})
	for i, n := range []int{1, 200, 5000, remoteBytes} {
		at := c.region(t, n, allAccess)
		got := make([]byte, n)
		must(t, e.Read(got, to, at, 7))
		read := completes(t, e)
		if want := append(pattern(n)[:n/2:n/2], make([]byte, n-n/2)...); !bytes.Equal(got, want) ||
			read.Context != 7 || read.Flags != cq.FlagRMA|cq.FlagRead || read.Len != uint64(n) {
			t.Errorf("%d bytes: read %+v, or other bytes", n, read)
		}
		half := fabric.Remote{Key: at.Key, Offset: uint64(n / 2)}
		m := fabric.Msg{Buf: pattern(n)[n/2 : n/2+n/3], Iov: [][]byte{nil, pattern(n)[n/2+n/3:]},
			Addr: to, Context: 8, Data: 9, Flags: cq.FlagDeliveryComplete | cq.FlagRemoteCQData}
		must(t, e.WriteMsg(&m, half))
		wrote := completes(t, e)
		if wrote.Context != 8 || wrote.Flags != cq.FlagRMA|cq.FlagWrite || wrote.Len != uint64(n-n/2) {
			t.Errorf("%d bytes: wrote %+v", n, wrote)
		}
		if said := c.tell(t, "right"); said != "true" {
			t.Errorf("%d bytes: they are right: %s", n, said)
		}
		if got := c.tell(t, "next"); got != fmt.Sprint(true, n-n/2, 9, 0, cq.Errno(0)) {
			t.Errorf("%d bytes: the target is told %s", n, got)
		}
		must(t, e.WriteMsg(&fabric.Msg{Addr: to, Flags: cq.FlagInjectCall}, at))
		nothing(t, e)
		if c.tell(t, "close"); e.Stats().Reached != uint64(3*(i+1)) {
			t.Errorf("%+v", e.Stats())
		}
	}
	c.Stop(t)
}

// TestRMARefused: what a key does not allow is an error of the call, and nothing completes.
func TestRMARefused(t *testing.T) {
	e, c, to := besideKeeper(t, fabric.Options{})
	const n = 4096
	at := c.region(t, n, cq.FlagRemoteRead)
	old := at
	c.tell(t, "close")
	if err := e.Read(nil, to, fabric.Remote{}, 1); !errors.Is(err, fabric.ErrKey) {
		t.Errorf("no key, of an empty place: %v", err)
	}
	c.region(t, n, cq.FlagRemoteRead)
	c.tell(t, "close")
	at = c.region(t, n, cq.FlagRemoteRead)
	none := e.knows(t, "main")
	for _, x := range []struct {
		name string
		to   cq.Addr
		at   fabric.Remote
		n    int
		m    cq.Flags
		want error
	}{
		{"revoked", to, old, 1, 0, fabric.ErrKey},
		{"another place", to, fabric.Remote{Key: at.Key + 1}, 1, 0, fabric.ErrKey},
		{"another generation", to, fabric.Remote{Key: at.Key + 256}, 1, 0, fabric.ErrKey},
		{"no key", to, fabric.Remote{}, 0, 0, fabric.ErrKey},
		{"empty place", to, fabric.Remote{Key: 3}, 0, 0, fabric.ErrKey},
		{"no regions", none, at, 1, 0, fabric.ErrKey},
		{"begins beyond", to, fabric.Remote{Key: at.Key, Offset: n + 1}, 0, 0, fabric.ErrRange},
		{"ends beyond", to, fabric.Remote{Key: at.Key, Offset: 1}, n, 0, fabric.ErrRange},
		{"wraps", to, fabric.Remote{Key: at.Key, Offset: 1<<64 - 8}, 16, 0, fabric.ErrRange},
		{"no peer", 99, at, 1, 0, fabric.ErrAddress},
		{"fence", to, at, 1, cq.FlagFence, fabric.ErrNotSupported},
		{"commit", to, at, 1, cq.FlagCommitComplete, fabric.ErrNotSupported},
		{"data", to, at, 1, cq.FlagRemoteCQData, fabric.ErrFlags},
	} {
		m := fabric.Msg{Buf: make([]byte, x.n), Addr: x.to, Flags: x.m}
		if err := e.ReadMsg(&m, x.at); !errors.Is(err, x.want) {
			t.Errorf("%s: %v, want %v", x.name, err, x.want)
		}
	}
	for what, err := range map[string]error{
		"write": e.Write(make([]byte, 1), to, at, 1),
		"atomic": e.Atomic(&fabric.AtomicMsg{Op: fabric.AtomicRead, Result: make([]byte, 1), Addr: to,
			At: at}),
	} {
		if !errors.Is(err, fabric.ErrAccess) {
			t.Errorf("%s where one may read: %v", what, err)
		}
	}
	long := fabric.Msg{Buf: make([]byte, fabric.MaxInline+1), Addr: to, Flags: cq.FlagInject}
	if err := e.WriteMsg(&long, at); !errors.Is(err, fabric.ErrTooLong) {
		t.Errorf("a long inject: %v", err)
	}
	must(t, e.Read(make([]byte, n), to, at, 1))
	completes(t, e)
	nothing(t, e)
	c.Stop(t)
	if err := e.Read(nil, to, at, 1); !errors.Is(err, fabric.ErrPeerClosed) {
		t.Errorf("of a peer that closed: %v", err)
	}
}

// TestRMAOwnerKilled: memory of a process that was killed cannot be reached, and nothing is left.
func TestRMAOwnerKilled(t *testing.T) {
	e, c, to := besideKeeper(t, fabric.Options{})
	at := c.region(t, 4096, allAccess)
	must(t, e.Write(make([]byte, 8), to, at, 1))
	completes(t, e)
	c.Kill()
	for e.Stats().Died == 0 {
		e.steps(t)
	}
	if err := e.Write(make([]byte, 8), to, at, 1); !errors.Is(err, fabric.ErrPeerDied) {
		t.Errorf("to a dead one: %v", err)
	}
	nothing(t, e)
	nothingLeft(t, e, "main")
}

// writer writes to main's memory until it is killed: the key is what it is told. With "stands" it
// stops in mid-copy, as it looks to its target.
func writer() {
	e, err := open("writer", fabric.Options{})
	need(err)
	to := shmtest.Needs(e.Resolve("main"))
	var at fabric.Remote
	var how string
	shmtest.Needs(fmt.Scan(&at.Key, &how))
	need(e.Write([]byte("x"), to, at, 1))
	if how == "stands" {
		o := shmtest.Needs(e.d.Open("main", shm.ReadOnly))
		mem := shmtest.Needs(o.MapWritable(kind.SectFabricUses, 0))
		kind.Overlays[kind.FabricUse](mem)[0].Key.Store(at.Key)
	}
	buf := pattern(remoteBytes)
	fmt.Println("writing")
	for how != "stands" {
		need(e.WriteMsg(&fabric.Msg{Buf: buf, Addr: to, Flags: cq.FlagInjectComplete}, at))
		completion := make([]cq.Entry, 1)
		if _, err = cq.Read(e.q, completion); err != nil {
			need(err)
		}
	}
	untilTold()
}

// TestRMAKilled: memory that an initiator may still copy into is not used again before it has been
// proved dead, and then it is, by the next who has its row too.
func TestRMAKilled(t *testing.T) {
	for _, how := range []string{"stands", "copies"} {
		t.Run(how, func(t *testing.T) {
			e := opened(t, "main", fabric.Options{Remote: remoteBytes, Peers: 1})
			for round := range uint64(2) {
				r, err := e.Register(remoteBytes, cq.FlagRemoteWrite)
				must(t, err)
				c := start(t, "writer")
				shmtest.Got(fmt.Fprintln(c.In, r.Key(), how)).Or(t)
				c.Says(t, "writing")
				if how == "stands" {
					must(t, r.Close())
					if _, err = e.Register(1, cq.FlagRemoteWrite); err != cq.ErrFull {
						c.Kill()
						t.Fatalf("memory of who has not ended: %v", err)
					}
					if s := e.Stats(); s.RevokedRemote != remoteBytes {
						t.Errorf("%+v", s)
					}
				}
				c.Kill()
				must(t, r.Close())
				for err = cq.ErrFull; err == cq.ErrFull; time.Sleep(time.Millisecond) {
					r, err = e.Register(remoteBytes, cq.FlagRemoteWrite)
				}
				must(t, err)
				must(t, r.Close())
				must(t, r.Close())
				if s := e.Stats(); s.FreeRemote != remoteBytes || s.HeldRemote+s.RevokedRemote != 0 {
					t.Errorf("%+v", s)
				}
				for e.Stats().Died <= round {
					e.steps(t)
				}
			}
		})
	}
}

// TestRMAHeir: what was left in its word by a sender that died does not count as that of the next
// who has its row, which reaches nothing.
func TestRMAHeir(t *testing.T) {
	e := opened(t, "main", fabric.Options{Remote: 4096, Peers: 1})
	r := shmtest.Got(e.Register(4096, cq.FlagRemoteWrite)).Or(t)
	c := start(t, "writer")
	shmtest.Got(fmt.Fprintln(c.In, r.Key(), "stands")).Or(t)
	c.Says(t, "writing")
	c.Kill()
	for e.Stats().Died == 0 {
		e.steps(t)
	}
	heir := opened(t, "heir", fabric.Options{})
	to := heir.knows(t, "main")
	must(t, heir.Inject(nil, to))
	e.steps(t)
	must(t, r.Close())
	if s := e.Stats(); s.FreeRemote != 4096 || s.Waiting != 1 {
		t.Errorf("%+v", s)
	}
}

// TestRegister: memory is divided, and what cannot be registered is refused.
func TestRegister(t *testing.T) {
	e := opened(t, "main", fabric.Options{Remote: 3 * 4096})
	for _, x := range []struct {
		n      int
		access cq.Flags
		want   error
	}{
		{0, allAccess, fabric.ErrTooLong},
		{-1, allAccess, fabric.ErrTooLong},
		{3*4096 + 1, allAccess, fabric.ErrTooLong},
		{1, 0, fabric.ErrFlags},
		{1, cq.FlagRMAEvent, fabric.ErrFlags},
		{1, cq.FlagRemoteRead | cq.FlagSend, fabric.ErrFlags},
	} {
		if _, err := e.Register(x.n, x.access); !errors.Is(err, x.want) {
			t.Errorf("%d bytes for %v: %v, want %v", x.n, x.access, err, x.want)
		}
	}
	a, err := e.Register(5000, allAccess)
	must(t, err)
	b := shmtest.Got(e.Register(1, allAccess)).Or(t)
	if _, err := e.Register(1, allAccess); err != cq.ErrFull || a.Key() == b.Key() ||
		len(a.Bytes()) != 5000 || cap(a.Bytes()) != 5000 {
		t.Errorf("%v; keys %x, %x; %d bytes", err, a.Key(), b.Key(), len(a.Bytes()))
	}
	must(t, a.Close())
	if _, err = e.Register(8192, allAccess); err != nil {
		t.Error(err)
	}
	must(t, e.close())
	must(t, b.Close())
	if _, err = e.Register(1, allAccess); !errors.Is(err, os.ErrClosed) {
		t.Errorf("of what is closed: %v", err)
	}
}

// TestRMAUntold: what a target has no room to report waits for room, in its order; and a peer can
// have no more of it under way than was granted, each as a message of no bytes.
func TestRMAUntold(t *testing.T) {
	const window = 4096
	a := openedSized(t, "a", 1024, fabric.Options{})
	b := openedSized(t, "b", 16, fabric.Options{Remote: 4096, Window: window})
	to := a.knows(t, "b")
	r := shmtest.Got(b.Register(8, allAccess)).Or(t)
	write := func(data uint64) error {
		return a.WriteMsg(&fabric.Msg{Addr: to, Data: data, Flags: cq.FlagRemoteCQData},
			fabric.Remote{Key: r.Key()})
	}
	sent := uint64(0)
	for full := 0; full < 2; {
		switch err := write(sent); err {
		case nil:
			sent++
			full = 0
			completes(t, a)
		case cq.ErrFull:
			full++
			b.steps(t)
		default:
			t.Fatal(err)
		}
	}
	if sent != 16+window/64 {
		t.Errorf("%d are under way, though %d are granted", sent, window/64)
	}
	for i := range sent {
		if c := completes(t, b); c.Data != i {
			t.Fatalf("write %d: %+v", i, c)
		}
	}
	must(t, write(sent))
	completes(t, a)
	if c := completes(t, b); c.Data != sent {
		t.Errorf("the next: %+v", c)
	}
}

// TestRMACounters: both sides count by kind: the target what comes with data, and all if the region
// says so.
func TestRMACounters(t *testing.T) {
	shmtest.Conforms(t)
	for _, events := range []bool{false, true} {
		kinds := []cq.Flags{cq.FlagRead, cq.FlagWrite, cq.FlagRemoteRead, cq.FlagRemoteWrite}
		counters := map[cq.Flags]*cq.Counter{}
		var ends [2]*end
		for i, name := range []string{"a", "b"} {
			o := fabric.Options{Remote: 4096, Counters: map[*cq.Counter]cq.Flags{}}
			for _, k := range kinds[2*i : 2*i+2] {
				c := shmtest.Got(cq.CreateCounter(cq.Unnamed("c"), cq.CounterOptions{})).Or(t)
				t.Cleanup(func() { must(t, c.Close()) })
				counters[k], o.Counters[c] = c, k
			}
			ends[i] = opened(t, name, o)
		}
		a, b := ends[0], ends[1]
		to := a.knows(t, "b")
		access := allAccess
		if events {
			access |= cq.FlagRMAEvent
		}
		r := shmtest.Got(b.Register(8, access)).Or(t)
		at := fabric.Remote{Key: r.Key()}
		var word [8]byte
		must(t, a.Read(word[:], to, at, 1))
		must(t, a.Write(word[:], to, at, 1))
		must(t, a.WriteMsg(&fabric.Msg{Buf: word[:], Addr: to, Flags: cq.FlagRemoteCQData}, at))
		must(t, a.Atomic(&fabric.AtomicMsg{Op: fabric.Sum, Buf: word[:], Addr: to, At: at}))
		must(t, a.Atomic(&fabric.AtomicMsg{Op: fabric.Sum, Buf: word[:], Result: word[:], Addr: to,
			At: at}))
		b.steps(t)
		want := []uint64{2, 3, 0, 1}
		if events {
			want = []uint64{2, 3, 2, 3}
		}
		for i, k := range kinds {
			if n, err := counters[k].Read(); err != nil || n != want[i] {
				t.Errorf("events %v: %v counted %d, %v, want %d", events, k, n, err, want[i])
			}
		}
		if c := completes(t, b); c.Flags&cq.FlagRemoteCQData == 0 {
			t.Errorf("told %+v", c)
		}
		nothing(t, b)
		must(t, errors.Join(a.Endpoint.Close(), b.Endpoint.Close()))
	}
}

// TestHostileRegion: an owner whose table leads beyond its memory is cut off.
func TestHostileRegion(t *testing.T) {
	for name, write := range map[string]func(r *kind.FabricRegion){
		"offset": func(r *kind.FabricRegion) { r.Offset.Store(4097) },
		"wraps":  func(r *kind.FabricRegion) { r.Offset.Store(1<<64 - 1) },
		"length": func(r *kind.FabricRegion) { r.Length.Store(4097) },
		"long":   func(r *kind.FabricRegion) { r.Length.Store(1 << 63) },
	} {
		t.Run(name, func(t *testing.T) {
			a, b := opened(t, "a", fabric.Options{}), opened(t, "b", fabric.Options{Remote: 4096})
			to := a.knows(t, "b")
			r := shmtest.Got(b.Register(4096, allAccess)).Or(t)
			o := shmtest.Got(b.d.Open("b", shm.ReadOnly)).Or(t)
			t.Cleanup(func() { must(t, o.Close()) })
			mem := shmtest.Got(o.MapWritable(kind.SectFabricRegions, 0)).Or(t)
			write(&kind.Overlays[kind.FabricRegion](mem)[0])
			at := fabric.Remote{Key: r.Key()}
			if err := a.Write(make([]byte, 8), to, at, 1); err != fabric.ErrCorrupt {
				t.Errorf("a write: %v", err)
			}
			if err := a.Send(nil, to, 1); !errors.Is(err, fabric.ErrCorrupt) || a.Stats().Corrupt != 1 {
				t.Errorf("a send afterwards: %v, %+v", err, a.Stats())
			}
			nothing(t, a)
		})
	}
}

// TestTransfers: completions tell of each kind of transfer, at both sides if the peer has one, with
// all flags that concern it.
func TestTransfers(t *testing.T) {
	shmtest.Conforms(t)
	a, b := opened(t, "a", fabric.Options{}), opened(t, "b", fabric.Options{Remote: 4096})
	to := a.knows(t, "b")
	r := shmtest.Got(b.Register(8, allAccess)).Or(t)
	at, w := fabric.Remote{Key: r.Key()}, make([]byte, 8)
	const data = cq.FlagRemoteCQData
	message := func(f cq.Flags) func() error {
		return func() error {
			return errors.Join(b.RecvMsg(&fabric.Msg{Buf: w, Addr: fabric.Anybody, Flags: f &^ data}),
				a.SendMsg(&fabric.Msg{Buf: w, Addr: to, Flags: f}))
		}
	}
	sum := fabric.AtomicMsg{Op: fabric.Sum, Buf: w, Addr: to, At: at}
	fetch := sum
	fetch.Result = make([]byte, 8)
	for _, x := range []struct {
		name       string
		do         func() error
		here, peer cq.Flags
	}{
		{"message", message(0), cq.FlagSend | cq.FlagMsg, cq.FlagRecv | cq.FlagMsg},
		{"with data", message(data), cq.FlagSend | cq.FlagMsg, cq.FlagRecv | cq.FlagMsg | data},
		{"tagged", message(cq.FlagTagged), cq.FlagSend | cq.FlagTagged, cq.FlagRecv | cq.FlagTagged},
		{"read", func() error { return a.Read(w, to, at, 0) }, cq.FlagRMA | cq.FlagRead, 0},
		{"write", func() error { return a.Write(w, to, at, 0) }, cq.FlagRMA | cq.FlagWrite, 0},
		{"write with data", func() error {
			return a.WriteMsg(&fabric.Msg{Buf: w, Addr: to, Flags: data}, at)
		}, cq.FlagRMA | cq.FlagWrite, toldFlags},
		{"atomic", func() error { return a.Atomic(&sum) }, cq.FlagAtomic | cq.FlagWrite, 0},
		{"fetch", func() error { return a.Atomic(&fetch) }, cq.FlagAtomic | cq.FlagRead, 0},
	} {
		must(t, x.do())
		if x.peer == 0 {
			nothing(t, b)
		} else if c := completes(t, b); c.Flags != x.peer {
			t.Errorf("%s: the peer has %v, want %v", x.name, c.Flags, x.peer)
		}
		if c := completes(t, a); c.Flags != x.here {
			t.Errorf("%s: here is %v, want %v", x.name, c.Flags, x.here)
		}
	}
}
