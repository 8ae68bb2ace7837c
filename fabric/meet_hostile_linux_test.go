package fabric_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/fabric"
	"github.com/shmring/shmring/internal/futex"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/place"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// forger is a peer that makes its objects by itself, and says what it likes.
type forger struct {
	t    *testing.T
	conn *net.UnixConn
	f    kind.Fabric
	o    kind.Outbox

	obj, box     *shm.Object
	page         *kind.FabricPage
	row          *kind.FabricRow
	lane         *kind.FabricLane
	slots        []kind.FabricSlot
	victim       [2]*shm.Object // what the other one has passed
	passed       []int
	met          chan error
	e            *end
	uuid         shm.UUID
	number       uint64 // of its connection, at the other end
	sealEndpoint shm.Seals
}

// forge has an honest endpoint meet a forger, which has said nothing yet.
func forge(t *testing.T) *forger {
	t.Helper()
	a, b := sockets(t)
	f := forgerAt(t, b)
	go func() {
		var err error
		f.e, err = meetEnd(a, nil, fabric.Options{})
		f.met <- err
	}()
	return f
}

// forgeDial has an honest dial meet a forger, which has said nothing yet.
func forgeDial(t *testing.T) *forger {
	t.Helper()
	a, b := sockets(t)
	f := forgerAt(t, b)
	go func() {
		_, err := fabric.DialOver(t.Context(), a, nil)
		f.met <- err
	}()
	return f
}

// forgerAt is a forger at one end of a connection.
func forgerAt(t *testing.T, conn *net.UnixConn) *forger {
	f := &forger{t: t, conn: conn, uuid: shm.NewUUID(), met: make(chan error, 1),
		sealEndpoint: shm.SealOthers}
	t.Cleanup(func() { _ = conn.Close() })
	id := kind.FabricOutboxID(1 << 40)
	high, low := kind.UuidWords(f.uuid)
	f.f = kind.Fabric{Rows: 1, Window: 1 << 16, Outbox: id}
	f.o = kind.Outbox{Lanes: 1, Slots: 8, ID: id, High: high, Low: low, Generation: 1, Chunks: 2,
		ChunkBytes: chunk}
	return f
}

// make makes its objects.
func (f *forger) make() {
	s := f.f.Spec("forged")
	s.UUID, s.Generation = f.uuid, 1
	f.obj = shmtest.Got(shm.CreateMemfd(s, nil)).Or(f.t)
	f.t.Cleanup(func() { _ = f.obj.Close() })
	f.box = shmtest.Got(place.Sealed(f.o.Spec("forged"), shm.SealOthers, nil)).Or(f.t)
	f.t.Cleanup(func() { _ = f.box.Close() })
	section := func(o *shm.Object, k shm.SectionKind) []byte {
		mem, _, err := o.Section(k, 0)
		must(f.t, err)
		return mem
	}
	f.page = kind.Overlay[kind.FabricPage](section(f.obj, kind.SectFabricPage))
	f.row = &kind.Overlays[kind.FabricRow](section(f.obj, kind.SectFabricRows))[0]
	f.lane = &kind.Overlays[kind.FabricLane](section(f.box, kind.SectFabricLanes))[0]
	f.slots = kind.Overlays[kind.FabricSlot](section(f.box, kind.SectFabricSlots))
	must(f.t, f.obj.Seal(f.sealEndpoint))
}

// says is a message of a meeting.
func says(step byte) []byte { return append([]byte("shmfab\r\n\x01\x00"), step, 0, 0, 0, 0, 0) }

// pass passes descriptors.
func (f *forger) pass(fds ...int) { must(f.t, shm.SendFDs(f.conn, says(1), fds...)) }

// leads takes what the other one has passed, makes the lane, and says so.
func (f *forger) leads() {
	_, fds, err := shm.RecvFDs(f.conn, make([]byte, 16), 2)
	must(f.t, err)
	f.t.Cleanup(func() { shm.CloseFDs(fds) })
	f.passed = fds
	for i := range f.victim {
		f.victim[i] = shmtest.Got(shm.OpenPassed(fds[i], "victim", 1<<30)).Or(f.t)
		f.t.Cleanup(func() { _ = f.victim[i].Close() })
	}
	high, low := kind.UuidWords(f.victim[0].Header().UUID)
	f.lane.Slots.Store(8)
	f.lane.TargetHigh.Store(high)
	f.lane.TargetLow.Store(low)
	f.lane.Pays.Store(1)
	f.lane.Bell.Parked.Store(1)
	f.row.Bell.Parked.Store(1)
	f.row.Granted.Store(f.f.Window)
	f.lane.ID.Store(kind.FabricLaneID(f.o.ID, 0, 1))
}

// ready says the last word.
func (f *forger) ready() {
	shmtest.Got(f.conn.Write(says(2))).Or(f.t)
}

// TestMeetHostile: whatever the other one passes in place of two objects that it cannot change
// afterwards, or says, is a typed error, and leaves nothing.
func TestMeetHostile(t *testing.T) {
	shmtest.Conforms(t)
	var p [2]int
	must(t, unix.Pipe2(p[:], unix.O_CLOEXEC))
	t.Cleanup(func() { shm.CloseFDs(p[:]) })
	whole := func(f *forger) {
		f.make()
		f.pass(f.obj.FD(), f.box.FD())
	}
	for _, c := range []struct {
		name string
		do   func(f *forger)
		want error
	}{
		{"hangs up", func(f *forger) { _ = f.conn.Close() }, cq.ErrPeerGone},
		{"another protocol", func(f *forger) {
			shmtest.Got(f.conn.Write([]byte("GET / HTTP/1.1\r\n"))).Or(f.t)
		}, fabric.ErrCorrupt},
		{"another version", func(f *forger) {
			shmtest.Got(f.conn.Write([]byte("shmfab\r\n\x02\x00\x01\x00\x00\x00\x00\x00"))).Or(f.t)
		}, shm.ErrVersion},
		{"ready at once", func(f *forger) {
			f.ready()
		}, fabric.ErrCorrupt},
		{"nothing", func(f *forger) { f.pass() }, fabric.ErrCorrupt},
		{"one object", func(f *forger) { f.make(); f.pass(f.obj.FD()) }, fabric.ErrCorrupt},
		{"pipes", func(f *forger) { f.pass(p[0], p[1]) }, shm.ErrOwner},
		{"unsealed", func(f *forger) { f.sealEndpoint = 0; whole(f) }, shm.ErrOwner},
		{"can write", func(f *forger) {
			f.sealEndpoint = shm.SealShrink | shm.SealGrow | shm.SealSeal
			whole(f)
		}, shm.ErrOwner},
		{"can shrink", func(f *forger) {
			f.sealEndpoint = shm.SealOthers &^ shm.SealShrink
			whole(f)
		}, shm.ErrOwner},
		{"too large", func(f *forger) { f.o.Chunks = 2100; whole(f) }, shm.ErrNoSpace},
		{"two outboxes", func(f *forger) { f.make(); f.pass(f.box.FD(), f.box.FD()) }, shm.ErrKind},
		{"two endpoints", func(f *forger) {
			f.make()
			f.pass(f.obj.FD(), f.obj.FD())
			f.leads()
			_, _ = f.conn.Write(says(2))
		}, fabric.ErrCorrupt},
		{"more rows", func(f *forger) { f.f.Rows = 2; whole(f) }, fabric.ErrCorrupt},
		{"remote memory", func(f *forger) { f.f.Remote = 4096; whole(f) }, fabric.ErrCorrupt},
		{"datagrams", func(f *forger) {
			f.make()
			f.page.Type.Store(kind.FabricDatagrams)
			f.pass(f.obj.FD(), f.box.FD())
		}, fabric.ErrType},
		{"what it was passed", func(f *forger) {
			_, fds, err := shm.RecvFDs(f.conn, make([]byte, 16), 2)
			must(f.t, err)
			f.pass(fds...)
			shm.CloseFDs(fds)
		}, fabric.ErrCorrupt},
		{"no lane", func(f *forger) {
			whole(f)
			f.ready()
		}, fabric.ErrCorrupt},
		{"outbox of another", func(f *forger) {
			f.o.ID = kind.FabricOutboxID(1 << 41)
			whole(f)
			f.leads()
			f.ready()
		}, fabric.ErrCorrupt},
		{"outbox of another endpoint", func(f *forger) {
			f.o.Low++
			whole(f)
			f.leads()
			f.ready()
		}, fabric.ErrCorrupt},
		{"number of no outbox", func(f *forger) {
			f.f.Outbox |= 1<<12 | 1
			whole(f)
			f.leads()
			f.ready()
		}, fabric.ErrCorrupt},
		{"lane to another", func(f *forger) {
			whole(f)
			f.leads()
			f.lane.TargetLow.Add(1)
			f.ready()
		}, fabric.ErrCorrupt},
		{"lane without slots", func(f *forger) {
			whole(f)
			f.leads()
			f.lane.Slots.Store(0)
			f.ready()
		}, fabric.ErrCorrupt},
		{"refuses", func(f *forger) {
			shmtest.Got(f.conn.Write([]byte("shmfab\r\n\x01\x00\x01\x00\x05\x00\x00\x00"))).Or(f.t)
		}, shm.ErrOwner},
	} {
		for how, meets := range map[string]func(*testing.T) *forger{"meet": forge, "dial": forgeDial} {
			t.Run(c.name+"/"+how, func(t *testing.T) {
				f := meets(t)
				c.do(f)
				if err := <-f.met; !errors.Is(err, c.want) {
					t.Errorf("%v, want %v", err, c.want)
				}
				if f.e != nil {
					must(t, f.e.close())
				}
			})
		}
	}
}

// TestMeetSilent: one who says nothing is waited for as long as the context says, and one who stops
// after a byte for a bounded time.
func TestMeetSilent(t *testing.T) {
	shmtest.Conforms(t)
	defer func(d time.Duration) { place.MeetTimeout = d }(place.MeetTimeout)
	for said, want := range map[string]error{"": context.DeadlineExceeded, "s": place.ErrSilent} {
		a, b := sockets(t)
		defer a.Close()
		defer b.Close() // or a collected one hangs up
		shmtest.Got(b.Write([]byte(said))).Or(t)
		wait := 10 * time.Second
		if place.MeetTimeout = 20 * time.Millisecond; said == "" {
			wait, place.MeetTimeout = place.MeetTimeout, wait
		}
		ctx, cancel := context.WithTimeout(context.Background(), wait)
		defer cancel()
		_, err := fabric.Meet(ctx, a, nil, fabric.Options{})
		shmtest.WantErr(t, "meet", err, want)
	}
}

// forged is a forger that was met.
func forged(t *testing.T) *forger {
	t.Helper()
	f := forge(t)
	f.meets()
	must(t, <-f.met)
	t.Cleanup(func() { must(t, f.e.close()) })
	return f
}

// meets does all that an honest one does.
func (f *forger) meets() {
	f.make()
	f.pass(f.obj.FD(), f.box.FD())
	f.leads()
	shmtest.Got(f.conn.Write(says(2))).Or(f.t)
}

// rings counts a ring for a message, as who may not mark does.
func (f *forger) rings() {
	f.lane.Rung.Add(1)
	futex.WakeAll(&f.lane.Rung)
}

// says publishes message i of a connection.
func (f *forger) says(i int, tag, data uint64, payload ...byte) {
	s := &f.slots[i]
	copy(s.Payload[:], payload)
	s.Tag.Store(tag)
	s.Data.Store(data)
	s.Head.Store(kind.FabricMessage | kind.FabricTagged | kind.FabricWithData |
		uint64(len(payload))<<32)
	s.Seq.Store(uint64(i) + 1)
	f.rings()
}

// hears waits for message i of the other one.
func (f *forger) hears(i uint64) *kind.FabricSlot {
	mem, _, err := f.victim[1].Section(kind.SectFabricSlots, 0)
	must(f.t, err)
	s := &kind.Overlays[kind.FabricSlot](mem)[i]
	shmtest.Eventually(f.t, "a message", func() bool { return s.Seq.Load() == i+1 })
	return s
}

// opens has a listener accept a connection.
func (f *forger) opens(l net.Listener) net.Conn {
	f.says(0, 1, 1<<32, 0, 0, 1, 0, 0, 0, 0, 0) // asks
	f.number = f.hears(0).Data.Load()
	f.says(1, 4|f.number, 0) // opened
	return accepts(f.t, l)
}

// TestOverAbandoned: one that lives, and answers no close and no ask, keeps nothing of who has left
// the connection.
func TestOverAbandoned(t *testing.T) {
	defer fabric.SetClosePatience(5 * time.Millisecond)()
	var f *forger
	for name, leaves := range map[string]func(t *testing.T){
		"close": func(t *testing.T) {
			l, at := overListener(t)
			conn := shmtest.Got(net.DialUnix("unix", nil, at)).Or(t)
			f = forgerAt(t, conn)
			f.meets()
			must(t, errors.Join(f.opens(l).Close(), l.Close()))
		},
		"dial": func(t *testing.T) {
			a, b := sockets(t)
			f = forgerAt(t, b)
			ctx, cancel := context.WithCancel(t.Context())
			dials := make(chan error, 1)
			go func() {
				_, err := fabric.DialOver(ctx, a, nil)
				dials <- err
			}()
			f.meets()
			f.hears(0)
			cancel()
			failsWith(t, "a dial", <-dials, context.Canceled)
			must(t, a.Close())
		},
	} {
		t.Run(name, func(t *testing.T) {
			leaves(t)
			must(t, f.conn.SetReadDeadline(time.Now().Add(20*time.Second)))
			b := make([]byte, 16)
			for n, err := 1, error(nil); n > 0 || err != nil; { // until the other end is closed
				n, err = f.conn.Read(b)
				if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
					break
				}
				must(t, err)
			}
		})
	}
}

// TestMetHostile: one that was met and writes what cannot be is cut off, and its memory, which it
// alone can write, leads nobody elsewhere.
func TestMetHostile(t *testing.T) {
	for name, write := range map[string]func(f *forger){
		"kind":    func(f *forger) { f.slots[0].Head.Store(99) },
		"length":  func(f *forger) { f.slots[0].Head.Store(kind.FabricMessage | 193<<32) },
		"segment": func(f *forger) { f.slots[0].Head.Store(kind.FabricData) },
		"chunk": func(f *forger) {
			f.slots[0].More[1].Store(2 * chunk)
			f.slots[0].Head.Store(kind.FabricMessage | kind.FabricInPool | 1<<32)
		},
		"chunk that ends beyond": func(f *forger) {
			f.slots[0].Head.Store(kind.FabricMessage | kind.FabricInPool | (2*chunk+1)<<32)
		},
		"head ahead": func(f *forger) {
			f.row.Owner.Store(f.lane1())
			f.row.Head.Store(9)
			f.row.Rev.Add(1)
			f.row.Rung.Add(1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := forged(t)
			must(t, f.e.Send(nil, 0, 1))
			write(f)
			f.slots[0].Seq.Store(1)
			f.rings()
			for range 3 {
				shmtest.Got(f.e.Progress()).Or(t)
			}
			if s := f.e.Stats(); s.Corrupt != 1 || s.Received != 0 {
				t.Errorf("%+v", s)
			}
			if _, failed, err := f.e.next(); err != nil || failed.Err != cq.Errno(syscall.EBADMSG) {
				t.Errorf("%+v, %v", failed, err)
			}
			shmtest.WantErr(t, "a send", f.e.Send(nil, 0, 1), fabric.ErrCorrupt)
		})
	}
}

// TestMetName: it is not called as it calls itself.
func TestMetName(t *testing.T) {
	l, at := overListener(t)
	conn := shmtest.Got(net.DialUnix("unix", nil, at)).Or(t)
	f := forgerAt(t, conn)
	f.meets()
	c := f.opens(l)
	if got, want := c.RemoteAddr().String(), fmt.Sprintf("uid-%d-pid-%d", os.Geteuid(),
		os.Getpid()); got != want {
		t.Errorf("it is %s, not %s", got, want)
	}
	f.says(2, 8|f.number, 0) // closes
	must(t, c.Close())
}

// TestMetReuses: one that announces messages by a number whose bytes it has not taken back is cut
// off, and has nobody remember more for it than it may have under way.
func TestMetReuses(t *testing.T) {
	f := forged(t)
	for i := range 2 * kind.FabricMostOps {
		must(t, f.e.Recv(make([]byte, 1), 1))
		s := &f.slots[i%8]
		s.Head.Store(kind.FabricRTS | kind.FabricInPool)
		s.Seq.Store(uint64(i) + 1)
		f.rings()
		shmtest.Got(f.e.Progress()).Or(t)
		if f.e.Stats().Corrupt == 1 {
			return
		}
		completes(t, f.e)
	}
	t.Error("it was not cut off")
}

// lane1 is the number of the lane that leads to it.
func (f *forger) lane1() uint64 {
	v := shmtest.Got(kind.StoredFabric("victim", f.victim[0].Header())).Or(f.t)
	return kind.FabricLaneID(v.Outbox, 0, 1)
}

// TestMetAnnounces: one that announces messages costs no memory by that, also where they are lent.
func TestMetAnnounces(t *testing.T) {
	f := forged(t)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for i := range f.slots {
		must(t, f.e.borrow(1))
		f.slots[i].Head.Store(kind.FabricRTS | uint64(i)<<16 | fabric.MaxMessage<<32)
		f.slots[i].Seq.Store(uint64(i) + 1)
	}
	f.rings()
	shmtest.Got(f.e.Progress()).Or(t)
	runtime.ReadMemStats(&after)
	mem, _, err := f.victim[0].Section(kind.SectFabricRows, 0)
	must(t, err)
	seen := kind.Overlays[kind.FabricRow](mem)[0].Head.Load()
	if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 || seen != uint64(len(f.slots)) {
		t.Errorf("%d bytes of memory were taken for %d messages, %+v", n, seen, f.e.Stats())
	}
}

// TestMetFlood: one that rings without end and sends nothing wakes a sleeper a few times.
func TestMetFlood(t *testing.T) {
	f := forged(t)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	flood := make(chan struct{})
	go func() {
		defer close(flood)
		for ctx.Err() == nil {
			for _, word := range []*atomic.Uint32{&f.row.Rung, &f.lane.Rung} {
				word.Add(1)
				futex.WakeAll(word)
			}
		}
	}()
	before := f.e.q.Stats().Sleeps
	_, err := cq.ReadContext(ctx, f.e.q, make([]cq.Entry, 1), cq.ReadOptions{})
	shmtest.WantErr(t, "a read", err, context.DeadlineExceeded)
	if n := f.e.q.Stats().Sleeps - before; n > 200 {
		t.Errorf("%d sleeps", n)
	}
	<-flood
}

// TestMetHangsUp: one that ends the connection and lives is not dead.
func TestMetHangsUp(t *testing.T) {
	shmtest.Conforms(t)
	f := forged(t)
	must(t, f.e.Send(nil, 0, 1))
	must(t, f.conn.Close())
	time.Sleep(20 * time.Millisecond) // the notice comes from a goroutine
	shmtest.Got(f.e.Progress()).Or(t)
	if n, err := cq.Read(f.e.q, make([]cq.Entry, 1)); n != 0 || f.e.Stats().Died != 0 {
		t.Errorf("%d completions, %v, %+v", n, err, f.e.Stats())
	}
}
