package fabric_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/fabric"
	"github.com/shmring/shmring/internal/cma"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// exposed is the shortest message that its receiver reads in the sender's memory.
const exposed = 64 << 10

// TestExposed: a long message is read where its sender has it: it is there though the sender does
// not move, and only as far as there is room. What cannot be read so comes by segments.
func TestExposed(t *testing.T) {
	var err error
	for _, c := range []struct {
		name    string
		a, b    fabric.Options
		n, room int
		flags   cq.Flags // of the receive
		late    bool     // it is posted when the message is there
		split   bool     // over two pieces of memory
		forged  bool     // the header names an address that nobody has
		asks    bool     // the sender has to move
	}{
		{name: "shortest", n: exposed},
		{name: "shorter", n: exposed - 1, asks: true},
		{name: "long", n: longBytes + 1},
		{name: "unexpected", n: exposed, late: true},
		{name: "truncated", n: longBytes, room: 1000},
		{name: "one of several", n: exposed, room: 2 * exposed, flags: cq.FlagMultiRecv},
		{name: "loan", n: longBytes, flags: cq.FlagFrame},
		{name: "pieces", n: exposed, split: true, asks: true},
		{name: "sender's wish", n: exposed, a: fabric.Options{DisableCMA: true}, asks: true},
		{name: "receiver's wish", n: exposed, b: fabric.Options{DisableCMA: true}, asks: true},
		{name: "wrong address", n: exposed, late: true, forged: true, asks: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.a.TransmitFlags = cq.FlagMatchComplete
			a, b := opened(t, "a", c.a), opened(t, "b", c.b)
			to := a.knows(t, "b")
			room := max(c.room, c.n)
			if c.name == "truncated" {
				room = c.room
			}
			buf := make([]byte, room)
			m := fabric.Msg{Buf: buf, Addr: fabric.Anybody, Context: 7, Flags: c.flags}
			if c.flags == cq.FlagFrame {
				m.Buf = nil
			} else if c.split {
				m.Buf, m.Iov = buf[:100], [][]byte{buf[100:]}
			}
			if !c.late {
				noError(t, b.RecvMsg(&m))
			}
			noError(t, a.Send(pattern(c.n), to, 9))
			if c.forged {
				scribble(t, a, "a").slots[0].More[1].Store(8)
			}
			b.steps(t)
			if c.late {
				noError(t, b.RecvMsg(&m))
			}
			if c.asks {
				if all := b.contexts(t); len(all) > 0 {
					t.Fatal("it is there before its sender has moved")
				}
				moves(t, a, b)
			}
			want := pattern(c.n)[:min(c.n, room)]
			if c.room > 0 && c.room < c.n {
				if f := fails(t, b); f.Err != cq.ETrunc || f.Len != uint64(room) ||
					f.OverrunBytes != uint64(c.n-room) {
					t.Errorf("%+v", f)
				}
			} else if got := completes(t, b); got.Context != 7 || got.Len != uint64(c.n) {
				t.Errorf("received %+v", got)
			} else if c.flags == cq.FlagFrame {
				buf, err = b.Payload(&got)
				noError(t, err)
				buf = bytes.Clone(buf)
				noError(t, b.Release(got))
			}
			if !bytes.Equal(buf[:len(want)], want) {
				t.Error("other bytes came")
			}
			if got := completes(t, a); got.Context != 9 || got.Len != uint64(c.n) {
				t.Errorf("sent %+v", got)
			}
			account(t, a, 8, 0, 0)
		})
	}
}

// TestWithdrawn: memory that is its user's again is read by nobody: neither after a close of the
// sender, nor after it has cut the receiver off.
func TestWithdrawn(t *testing.T) {
	for how, num := range map[string]syscall.Errno{"closes": syscall.ECANCELED,
		"cuts": syscall.EBADMSG} {
		t.Run(how, func(t *testing.T) {
			a, b, to, _ := pair(t, fabric.Options{})
			sent := pattern(exposed)
			noError(t, a.Send(sent, to, 9))
			b.steps(t)
			if how == "closes" {
				noError(t, a.Close())
			} else {
				row := &scribble(t, b, "b").rows[0]
				row.Head.Store(99)
				row.Rev.Add(1)
			}
			if f := fails(t, a); f.Context != 9 || f.Err != cq.Errno(num) {
				t.Errorf("the send: %+v", f)
			}
			clear(sent) // it is its user's
			noError(t, b.Recv(make([]byte, exposed), 7))
			if how == "closes" {
				if f := fails(t, b); f.Context != 7 || f.Err != cq.Errno(syscall.EPIPE) || f.Len != 0 {
					t.Errorf("the receive: %+v", f)
				}
			} else if all := b.contexts(t); len(all) > 0 {
				t.Error("a message came of memory that was not the sender's to give")
			}
		})
	}
}

// TestExposedDescriptors: of many senders whose memory is read, few keep a descriptor, and all are
// read.
func TestExposedDescriptors(t *testing.T) {
	b := opened(t, "b", fabric.Options{})
	senders := make([]*end, 10)
	for i := range senders {
		senders[i] = opened(t, fmt.Sprint("a-", i), fabric.Options{})
		noError(t, senders[i].Inject(nil, senders[i].knows(t, "b")))
		noError(t, b.Recv(nil, 1))
		completes(t, b)
	}
	before := len(shmtest.Descriptors())
	for range 2 {
		for _, a := range senders {
			noError(t, a.Send(pattern(exposed), a.knows(t, "b"), 9))
			noError(t, b.Recv(make([]byte, exposed), 7))
			b.steps(t)
			if got := b.contexts(t); len(got) != 1 {
				t.Errorf("what is there before its sender has moved: %v", got)
			}
			completes(t, a)
		}
	}
	if n := len(shmtest.Descriptors()) - before; n > 8 {
		t.Errorf("%d senders have %d descriptors", len(senders), n)
	}
}

// TestExposedForbidden: where the kernel does not allow to read the sender's memory, the message
// comes by segments, and no other one is tried.
func TestExposedForbidden(t *testing.T) {
	e := opened(t, "main", fabric.Options{})
	c := start(t, "guarded")
	c.says(t, "sent")
	runtime.LockOSThread() // and never unlocked: the thread ends with the test
	noError(t, withoutTracing())
	for i := range 2 {
		buf := make([]byte, exposed)
		noError(t, e.Recv(buf, uint64(i)))
		if got := completes(t, e); got.Len != exposed || !bytes.Equal(buf, pattern(exposed)) {
			t.Errorf("%+v, or other bytes", got)
		}
		if scribble(t, e, "main").page.Reads.Load() != 0 {
			t.Error("it is tried again")
		}
	}
	c.ends(t)
}

// withoutTracing takes the right to trace any process from this thread.
func withoutTracing() error {
	h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var d [2]unix.CapUserData
	if err := unix.Capget(&h, &d[0]); err != nil {
		return err
	}
	d[0].Effective &^= 1 << unix.CAP_SYS_PTRACE
	return unix.Capset(&h, &d[0])
}

// guarded sends twice to main from memory that none but root may read.
func guarded() {
	must(unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0))
	e, err := open("guarded", fabric.Options{})
	must(err)
	to, err := e.Resolve("main")
	must(err)
	for range 2 {
		must(e.Send(pattern(exposed), to, 1))
	}
	fmt.Println("sent")
	for range 2 {
		_, _, err = e.next()
		must(err)
	}
	untilTold()
	must(e.close())
}

// exposer sends to main, and, when it is told, from memory that main may read.
func exposer() {
	e, err := open("exposer", fabric.Options{})
	must(err)
	to, err := e.Resolve("main")
	must(err)
	must(e.Inject(nil, to))
	fmt.Println("begun")
	_, _ = fmt.Scanln()
	must(e.Send(pattern(exposed), to, 1))
	fmt.Println("sent")
	untilTold()
}

// besideExposer has a message of an exposer that was not examined, whose sender is known.
func besideExposer(t *testing.T) (e *end, c *child, box string) {
	t.Helper()
	e, c = opened(t, "main", fabric.Options{}), start(t, "exposer")
	c.says(t, "begun")
	noError(t, e.Recv(nil, 1))
	completes(t, e)
	from := e.knows(t, "exposer")
	a, err := e.Lookup(from)
	noError(t, err)
	fmt.Fprintln(c.in)
	c.says(t, "sent")
	return e, c, kind.FabricOutboxName(a.Outbox)
}

// TestExposedByDead: what is read where the process of a sender was is not believed, if that has
// ended: its number may be another one's by then, here this one's.
func TestExposedByDead(t *testing.T) {
	e, c, name := besideExposer(t)
	box, err := e.d.Open(name, shm.ReadOnly)
	noError(t, err)
	defer box.Close()
	mem, err := box.MapWritable(kind.SectFabricSlots, 0)
	noError(t, err)
	c.kill(t)
	file, err := os.OpenFile(filepath.Join(e.d.Path(), name), os.O_RDWR, 0)
	noError(t, err)
	defer file.Close()
	var page [4096]byte
	_, err = file.ReadAt(page[:], 0)
	noError(t, err)
	its := binary.LittleEndian.AppendUint64(nil, uint64(c.Process.Pid))
	record := bytes.LastIndex(page[:], its) // before it is who made the object
	_, err = file.WriteAt(binary.LittleEndian.AppendUint64(nil, uint64(os.Getpid())), int64(record))
	noError(t, err)
	if box.Owner().PID != os.Getpid() {
		t.Fatal(box.Owner())
	}
	secret := pattern(exposed)
	kind.Overlays[kind.FabricSlot](mem)[1].More[1].Store(cma.Address(secret))
	noError(t, e.Recv(make([]byte, exposed), 2))
	if f := fails(t, e); f.Context != 2 || f.Err != cq.Errno(syscall.ECONNRESET) {
		t.Errorf("%+v", f)
	}
	runtime.KeepAlive(secret)
	nothingLeft(t, e, "main")
}
