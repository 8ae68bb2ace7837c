package fabric_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/fabric"
	"github.com/shmring/shmring/internal/collect"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/shmtest"
)

const lasts = cq.FlagCommitComplete

// disk is a file whose device can fail, and be looked at in mid-sync.
type disk struct {
	*os.File
	write error
	sync  func() error
}

func (d *disk) WriteAt(b []byte, at int64) (int, error) {
	if d.write != nil {
		return 0, d.write
	}
	return d.File.WriteAt(b, at)
}

func (d *disk) Sync() error {
	err := d.File.Sync()
	if d.sync != nil {
		return d.sync()
	}
	return err
}

// scratch makes a file that holds something.
func scratch(t *testing.T, holds string) *disk {
	t.Helper()
	name := filepath.Join(t.TempDir(), "memory")
	must(t, os.WriteFile(name, []byte(holds), 0o600))
	return &disk{File: onDisk(t, name)}
}

func onDisk(t *testing.T, name string) *os.File {
	t.Helper()
	f := shmtest.Got(os.OpenFile(name, os.O_RDWR, 0)).Or(t)
	t.Cleanup(func() { must(t, f.Close()) })
	return f
}

// holds fails if other bytes are in a file.
func holds(t *testing.T, name string, want []byte) {
	t.Helper()
	got, err := os.ReadFile(name)
	if must(t, err); !bytes.HasPrefix(got, want) {
		t.Errorf("%d bytes in the file: %.20q, want %d: %.20q", len(got), got, len(want), want)
	}
}

const fileBytes = 64 << 10

// lasting has memory that lies in the file that it is told, and moves until it is killed: with
// "dies" in the middle of a sync, with "stands" not at all.
func lasting() {
	var name, how string
	shmtest.Needs(fmt.Scan(&name, &how))
	f := shmtest.Needs(os.OpenFile(name, os.O_RDWR, 0))
	d := disk{File: f}
	if how == "dies" {
		d.sync = func() error { return syscall.Kill(os.Getpid(), syscall.SIGKILL) }
	}
	e := shmtest.Needs(open("lasting", fabric.Options{Remote: fileBytes, RemoteFile: &d}))
	r := shmtest.Needs(e.Register(fileBytes, allAccess))
	fmt.Println(r.Key())
	if how != "stands" {
		need(e.moves(context.Background()))
	}
	untilTold()
}

func startLasting(t *testing.T, name, how string) (c *child, at fabric.Remote) {
	t.Helper()
	c = start(t, "lasting")
	shmtest.Got(fmt.Fprintln(c.In, name, how)).Or(t)
	shmtest.Got(fmt.Fscan(c.Out, &at.Key)).Or(t)
	return c, at
}

// commits writes what is to last, and waits to be killed.
func commits() {
	e := shmtest.Needs(open("commits", fabric.Options{}))
	to := shmtest.Needs(e.Resolve("lasting"))
	var at fabric.Remote
	shmtest.Needs(fmt.Scan(&at.Key))
	need(e.WriteMsg(&fabric.Msg{Buf: pattern(fileBytes), Addr: to, Flags: lasts}, at))
	c, failed, err := e.next()
	need(err)
	fmt.Println(c.Flags == cq.FlagRMA|cq.FlagWrite, failed.Err)
	untilTold()
}

// TestCommit: when a write of this level has completed its bytes are in the file, though both
// processes are killed then. Who opens that again has them.
func TestCommit(t *testing.T) {
	shmtest.Conforms(t)
	d := scratch(t, "")
	owner, at := startLasting(t, d.Name(), "moves")
	c := start(t, "commits")
	shmtest.Got(fmt.Fprintln(c.In, at.Key)).Or(t)
	c.Says(t, fmt.Sprint(true, cq.Errno(0)))
	owner.Kill()
	c.Kill()
	holds(t, d.Name(), pattern(fileBytes))
	e := opened(t, "lasting", fabric.Options{Remote: 2 * fileBytes, RemoteFile: d})
	r, err := e.Register(fileBytes, allAccess)
	if must(t, err); !bytes.Equal(r.Bytes(), pattern(fileBytes)) {
		t.Error("it has other bytes")
	}
	all, err := e.d.List() // nobody knew the other one
	must(t, err)
	for _, n := range all {
		_ = collect.Remove(e.d, n.Name(), collect.Options{}) // or it lives
	}
	nothingLeft(t, e, "lasting")
}

// TestCommitKilled: a write whose target is killed before it could say that it lasts fails, be it
// in the file or not.
func TestCommitKilled(t *testing.T) {
	for how, want := range map[string]string{"dies": "new", "stands": "old"} {
		t.Run(how, func(t *testing.T) {
			d := scratch(t, "old")
			c, at := startLasting(t, d.Name(), how)
			e := opened(t, "main", fabric.Options{})
			to := shmtest.Got(e.Resolve("lasting")).Or(t)
			must(t, e.WriteMsg(&fabric.Msg{Buf: []byte("new"), Addr: to, Context: 1,
				Flags: lasts}, at))
			if how == "stands" {
				c.Kill()
			} else {
				_ = c.Wait()
			}
			if f := fails(t, e); f.Context != 1 || f.Err != cq.Errno(syscall.ECONNRESET) ||
				f.Flags != cq.FlagRMA|cq.FlagWrite {
				t.Errorf("%+v", f)
			}
			holds(t, d.Name(), []byte(want))
			nothingLeft(t, e, "main")
		})
	}
}

// lastingPair opens two endpoints, of which the second has memory in a file: the first one itself
// if it has that name.
func lastingPair(t *testing.T, d *disk, name string) (a, b *end, to cq.Addr, at fabric.Remote) {
	t.Helper()
	o := fabric.Options{Remote: 4096, RemoteFile: d, Slots: 128}
	b = opened(t, "b", o)
	if a = b; name != "b" {
		a = opened(t, name, fabric.Options{Slots: 128})
	}
	to = shmtest.Got(a.Resolve("b")).Or(t)
	r := shmtest.Got(b.Register(4096, allAccess)).Or(t)
	return a, b, to, fabric.Remote{Key: r.Key()}
}

// TestCommitOrder: nothing completes before the file is synced, whatever reaches it.
func TestCommitOrder(t *testing.T) {
	shmtest.Conforms(t)
	for _, name := range []string{"a", "b"} {
		t.Run(name, func(t *testing.T) { commitOrder(t, name) })
	}
}

func commitOrder(t *testing.T, name string) {
	d := scratch(t, "")
	a, b, to, at := lastingPair(t, d, name)
	syncs, early := 0, false
	d.sync = func() error {
		syncs++
		if name == "b" { // its own endpoint is what syncs
			return nil
		}
		if _, err := a.Progress(); err != nil {
			t.Error(err)
		}
		if c := a.contexts(t); len(c) > 0 {
			early = true
		}
		return nil
	}
	word := []byte("\x01\x00\x00\x00\x00\x00\x00\x00")
	write := fabric.Msg{Buf: word, Addr: to, Context: 1, Flags: lasts}
	data, inject := write, write
	data.Flags, data.Data = lasts|cq.FlagRemoteCQData, 7
	inject.Flags = lasts | cq.FlagInjectCall
	sum := fabric.AtomicMsg{Op: fabric.Sum, Type: fabric.Uint64, Buf: word, Addr: to, At: at,
		Context: 1, Flags: lasts}
	fetch := sum
	fetch.Result = make([]byte, 8)
	for i, x := range []struct {
		name       string
		do         func() error
		here, peer cq.Flags // of the entries
		want       byte
	}{
		{"write", func() error { return a.WriteMsg(&write, at) }, cq.FlagRMA | cq.FlagWrite, 0, 1},
		{"atomic", func() error { return a.Atomic(&sum) }, cq.FlagAtomic | cq.FlagWrite, 0, 2},
		{"fetch", func() error { return a.Atomic(&fetch) }, cq.FlagAtomic | cq.FlagRead, 0, 3},
		{"data", func() error { return a.WriteMsg(&data, at) }, cq.FlagRMA | cq.FlagWrite,
			toldFlags, 1},
		{"inject", func() error { return a.WriteMsg(&inject, at) }, 0, 0, 1},
	} {
		must(t, x.do())
		if moves(t, a, b); early {
			t.Fatalf("%s: it completed before it lasts", x.name)
		}
		if x.peer != 0 {
			if c := completes(t, b); c.Flags != x.peer {
				t.Errorf("%s: the target is told %+v", x.name, c)
			}
		}
		if x.here != 0 {
			if c := completes(t, a); c.Flags != x.here {
				t.Errorf("%s: %+v", x.name, c)
			}
		}
		if nothing(t, a); syncs != i+1 {
			t.Errorf("%s: %d syncs", x.name, syncs)
		}
		holds(t, d.Name(), []byte{x.want, 0, 0, 0, 0, 0, 0, 0})
	}
}

// TestCommitLevels: with any other level what is written is visible at once, and is not in the file
// before a write of level commit is.
func TestCommitLevels(t *testing.T) {
	shmtest.Conforms(t)
	d := scratch(t, "old")
	a, b, to, at := lastingPair(t, d, "a")
	for _, level := range []cq.Flags{0, cq.FlagInjectComplete, cq.FlagTransmitComplete,
		cq.FlagDeliveryComplete, lasts} {
		was, want := "old", []byte("new")
		must(t, a.WriteMsg(&fabric.Msg{Buf: want, Addr: to, Flags: level}, at))
		got := make([]byte, 3)
		must(t, a.Read(got, to, at, 0))
		if string(got) != "new" {
			t.Errorf("%v: %q is visible", level, got)
		}
		moves(t, b, a)
		if len(a.completions(t)) != 2 {
			t.Errorf("%v: not both completed", level)
		}
		if level == lasts {
			was = "new"
		}
		holds(t, d.Name(), []byte(was))
		must(t, a.Write([]byte("old"), to, at, 0))
		completes(t, a)
	}
}

// TestCommitFails: what the file does not take fails, for its sender, and the target is not told;
// as many as there can be, and the next ones go well.
func TestCommitFails(t *testing.T) {
	for _, name := range []string{"a", "b"} {
		for _, what := range []string{"write", "sync"} {
			t.Run(name+what, func(t *testing.T) {
				d := scratch(t, "old")
				a, b, to, at := lastingPair(t, d, name)
				write := func(context uint64) error {
					return a.WriteMsg(&fabric.Msg{Buf: []byte("new"), Addr: to, Context: context,
						Flags: lasts | cq.FlagRemoteCQData}, at)
				}
				if what == "write" {
					d.write = syscall.EIO
				} else {
					d.sync = func() error { return syscall.EIO }
				}
				n := uint64(0)
				for n < kind.FabricMostAsks+1 && write(n) == nil {
					n++
				}
				if name == "a" && n != kind.FabricMostAsks {
					t.Errorf("%d wait for the file", n)
				}
				for i := range n {
					moves(t, b)
					if f := fails(t, a); f.Context != i || f.Err != cq.Errno(syscall.EIO) ||
						f.Flags != cq.FlagRMA|cq.FlagWrite {
						t.Errorf("%+v", f)
					}
				}
				nothing(t, b)
				d.write, d.sync = nil, nil
				must(t, write(n))
				if c := completes(t, b); c.Flags != toldFlags {
					t.Errorf("told %+v", c)
				}
				if c := completes(t, a); c.Context != n {
					t.Errorf("afterwards: %+v", c)
				}
				holds(t, d.Name(), []byte("new"))
			})
		}
	}
}

// TestCommitRefused: only what changes memory that lies in a file can last.
func TestCommitRefused(t *testing.T) {
	shmtest.Conforms(t)
	a, b := opened(t, "a", fabric.Options{}), opened(t, "b", fabric.Options{Remote: 4096})
	to, err := a.Resolve("b")
	must(t, err)
	r := shmtest.Got(b.Register(8, allAccess)).Or(t)
	at, w := fabric.Remote{Key: r.Key()}, make([]byte, 8)
	m := fabric.Msg{Buf: w, Addr: to, Flags: lasts}
	for what, err := range map[string]error{
		"write":   a.WriteMsg(&m, at),
		"message": a.SendMsg(&m),
		"atomic": a.Atomic(&fabric.AtomicMsg{Buf: w, Type: fabric.Uint64, Addr: to, At: at,
			Flags: lasts}),
	} {
		if !errors.Is(err, fabric.ErrNotSupported) {
			t.Errorf("%s: %v", what, err)
		}
	}
	nothing(t, a)
	must(t, b.close())
	a, _, to, at = lastingPair(t, scratch(t, ""), "a2")
	m.Addr = to
	if err = a.ReadMsg(&m, at); err != fabric.ErrNotSupported {
		t.Errorf("a read: %v", err)
	}
	closed := scratch(t, "")
	_, err = fabric.Open(a.d, "c", fabric.Options{RemoteFile: closed})
	shmtest.WantErr(t, "a file of no bytes", err, cq.ErrInvalid)
	f := shmtest.Got(os.Open(t.TempDir())).Or(t)
	defer f.Close()
	_, err = fabric.Open(a.d, "c", fabric.Options{Remote: 1, RemoteFile: f})
	shmtest.WantErr(t, "a file that cannot be read", err, syscall.EISDIR)
}

// TestHostileCommit: who asks for what cannot last is cut off, and nothing is written.
func TestHostileCommit(t *testing.T) {
	const asks = kind.FabricReached | kind.FabricAsks
	for name, x := range map[string]struct{ head, at uint64 }{
		"bit":         {asks | kind.FabricWrite<<16 | kind.FabricMostAsks<<24, 0},
		"read":        {asks | kind.FabricRead<<16, 0},
		"nothing":     {asks, 0},
		"begins":      {asks | kind.FabricWrite<<16 | 1<<32, 4096},
		"ends beyond": {asks | kind.FabricWrite<<16 | 2<<32, 4095},
		"wraps":       {asks | kind.FabricWrite<<16 | 2<<32, 1<<64 - 1},
		"bit of none": {kind.FabricReached | kind.FabricWrite<<16 | 1<<24, 0},
	} {
		t.Run(name, func(t *testing.T) {
			d := scratch(t, "old")
			a, b, to, _ := lastingPair(t, d, "a")
			must(t, a.Send(nil, to, 1))
			slot := &scribble(t, a, "a").slots[0]
			slot.More[1].Store(x.at)
			slot.Head.Store(x.head)
			if moves(t, b); b.Stats().Corrupt != 1 {
				t.Errorf("%+v", b.Stats())
			}
			fails(t, a)
			holds(t, d.Name(), []byte("old"))
		})
	}
}

// TestCommitOwed: a target that owes its peer as many records as there can be cuts nobody off.
func TestCommitOwed(t *testing.T) {
	d := scratch(t, "")
	d.write = syscall.EIO
	o := fabric.Options{Remote: 4096, RemoteFile: d, Slots: 128}
	a := openedSized(t, "a", 2*kind.FabricMostOps, fabric.Options{Slots: 128})
	b := openedSized(t, "b", 2*kind.FabricMostOps, o)
	to := a.knows(t, "b")
	r := shmtest.Got(b.Register(4096, allAccess)).Or(t)
	for i := range uint64(kind.FabricMostOps) { // headers alone
		err := a.Send(make([]byte, chunk+1), to, i)
		if errors.Is(err, cq.ErrFull) {
			moves(t, b)
			err = a.Send(make([]byte, chunk+1), to, i)
		}
		must(t, err)
	}
	for i := range uint64(kind.FabricMostOps) {
		must(t, b.Recv(nil, i))
	}
	for range kind.FabricMostAsks {
		must(t, a.WriteMsg(&fabric.Msg{Buf: []byte("new"), Addr: to, Flags: lasts},
			fabric.Remote{Key: r.Key()}))
	}
	moves(t, b, a)
	if s := b.Stats(); s.Corrupt != 0 {
		t.Errorf("%+v", s)
	}
}
