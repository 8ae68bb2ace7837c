package ctl_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/ctl"
	"github.com/shmring/shmring/fabric"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// loneObjects makes an object of each kind that stands by itself and returns their names. They stay
// when nobody has them open, but for the bell.
func loneObjects(t *testing.T, d *shm.Dir) []string {
	t.Helper()
	c, err := cq.CreateCounter(cq.Named(d, "c"), cq.CounterOptions{Lifetime: cq.Persistent})
	must(t, err)
	must(t, c.Add(7))
	must(t, c.Close())
	v := shmtest.Got(cq.CreateAddresses(cq.Named(d, "a"),
		cq.AddressOptions{Count: 16, Lifetime: cq.Persistent})).Or(t)
	must(t, v.Detach())
	shmtest.Have(cq.NewWaitSet(d, cq.WaitSetOptions{})).In(t)
	list := shmtest.Got(d.List()).Or(t)
	for _, n := range list {
		if strings.HasPrefix(n.Name(), "bell-") {
			t.Cleanup(specimenEndpoints(t, d))
			o := shmtest.Got(ctl.ShowObject(d, "asks")).Or(t)
			return []string{"c", "a", n.Name(), "answers", o.Fabric.Outbox}
		}
	}
	t.Fatal("no bell")
	return nil
}

func TestShowObject(t *testing.T) {
	d := ownDir(t)
	names := loneObjects(t, d)
	for i, want := range []shm.Kind{shm.KindCounter, shm.KindAddresses, shm.KindBell,
		shm.KindFabric, shm.KindOutbox} {
		o := shmtest.Got(ctl.ShowObject(d, names[i])).Or(t)
		if *o.Kind != want.String() || o.Name != names[i] ||
			o.Path != filepath.Join(d.Path(), names[i]) || (o.Counter != nil) != (i == 0) ||
			(o.Addresses != nil) != (i == 1) || (o.Domain != nil) != (i == 2) ||
			(o.Fabric != nil) != (i == 3) || (o.Outbox != nil) != (i == 4) || *o.SizeBytes < 4096 {
			t.Errorf("%+v", o)
		}
		switch i {
		case 0:
			if o.Counter.Value != 7 || o.Process != nil || o.State != ctl.StateReleased {
				t.Errorf("%s, %+v", o.State, o.Counter)
			}
		case 1:
			if o.Addresses.Count != 16 || o.State != ctl.StateReleased {
				t.Errorf("%s, %+v", o.State, o.Addresses)
			}
		case 2:
			if o.Domain.Sleeping || *o.Process.PID != os.Getpid() || o.State != ctl.StateOpen {
				t.Errorf("%s, %+v", o.State, o.Domain)
			}
		}
	}
	_, err := ctl.ShowObject(d, "nothing")
	wantErr(t, "not there", err, fs.ErrNotExist)
	_, err = ctl.ShowObject(d, "a/b")
	wantErr(t, "name", err, shm.ErrName)
}

// TestShowObjectBroken: whatever stands in a file is an error, or bounded.
func TestShowObjectBroken(t *testing.T) {
	d := ownDir(t)
	const name = "copy"
	path := filepath.Join(d.Path(), name)
	rnd := rand.New(rand.NewPCG(5, 6))
	for _, from := range loneObjects(t, d) {
		good := shmtest.Got(os.ReadFile(filepath.Join(d.Path(), from))).Or(t)
		try := func(what string, text []byte, want error) {
			t.Helper()
			must(t, os.WriteFile(path, text, 0o600))
			_, err := ctl.ShowObject(d, name)
			if want == nil {
				must(t, err)
			} else if !errors.Is(err, want) {
				t.Errorf("%s of %s: %v, want %v", what, from, err, want)
			}
		}
		try("a copy", good, nil)
		try("a page", good[:4096], shm.ErrTruncated)
		try("nothing", nil, shm.ErrTruncated)
		bad := append([]byte(nil), good...)
		bad[0x100] ^= 1 // an attribute, under the checksum
		try("a scribbled header", bad, shm.ErrCorrupt)
		for range 30 {
			wild := append([]byte(nil), good...)
			for off := 4096; off+8 <= len(wild) && off < 4096+16384; off += 8 {
				binary.LittleEndian.PutUint64(wild[off:], rnd.Uint64()>>rnd.IntN(64))
			}
			must(t, os.WriteFile(path, wild, 0o600))
			s, err := ctl.ShowObject(d, name)
			if err == nil && s.Addresses != nil && s.Addresses.Used > 16 {
				t.Errorf("%d addresses of 16", s.Addresses.Used)
			}
			boundedLanes(t, s)
		}
	}
}

// boundedLanes checks what is said of endpoints of two peers and eight slots a lane.
func boundedLanes(t *testing.T, o ctl.Object) {
	t.Helper()
	var lanes []ctl.FabricLane
	if o.Fabric != nil {
		lanes = o.Fabric.Lanes
	}
	if b := o.Outbox; b != nil {
		if lanes = b.Lanes; b.ChunksOut > b.Chunks {
			t.Errorf("%d chunks are out, of %d", b.ChunksOut, b.Chunks)
		}
	}
	for _, l := range lanes {
		if len(lanes) > 2 || l.Unexamined != nil && *l.Unexamined > 8 ||
			l.Controls != nil && *l.Controls > 8 {
			t.Errorf("%+v", lanes)
		}
	}
}

// writable maps a section of an object as its owner does.
func writable(t *testing.T, d *shm.Dir, name string, k shm.SectionKind) []byte {
	t.Helper()
	o := shmtest.Have(d.Open(name, shm.ReadOnly)).In(t)
	return shmtest.Got(o.MapWritable(k, 0)).Or(t)
}

// TestShowEndpoint: both objects of an endpoint tell the same of a lane, as far as both ends are
// there, in each stage of it.
func TestShowEndpoint(t *testing.T) {
	d := ownDir(t)
	q := shmtest.Got(cq.Create(cq.Unnamed("ends"), cq.Options{})).Or(t)
	w := shmtest.Got(q.Writer()).Or(t)
	o := fabric.Options{Transmit: w, Receive: w, Peers: 2, Chunks: 4, Window: 4096}
	b := shmtest.Got(fabric.Open(d, "answers", o)).Or(t)
	a := shmtest.Got(fabric.Open(d, "asks", o)).Or(t)
	t.Cleanup(func() { must(t, errors.Join(a.Close(), b.Close(), w.Close(), q.Close())) })
	to := shmtest.Got(a.Resolve("answers")).Or(t)
	send := func(sizes ...int) {
		for _, n := range sizes {
			must(t, a.Send(make([]byte, n), to, 1))
		}
	}
	progress := func(e *fabric.Endpoint) { _, err := e.Progress(); must(t, err) }
	type numbers struct {
		Stage                                                 string
		Sent, Examined, Unexamined, Granted, Controls, Chunks uint64
	}
	for _, c := range []struct {
		do   func()
		want numbers
	}{
		{func() { send(0, 200) }, numbers{ctl.LaneClaimed, 2, 0, 2, 4096, 0, 1}},
		{func() { progress(b) }, numbers{ctl.LaneAdopted, 2, 2, 0, 4096, 0, 0}},
		{func() { progress(a); send(200, 300, 5000) }, numbers{ctl.LaneAdopted, 5, 2, 3, 4096, 0, 2}},
		{func() { // a receive for each but the last, which is asked for
			for range 5 {
				must(t, b.Recv(make([]byte, 5000), 2))
			}
			progress(b)
		}, numbers{ctl.LaneAdopted, 5, 5, 0, 4096 + 64 + 200 + 200 + 300, 1, 0}},
		{func() { // what cannot be has bounds
			row := &kind.Overlays[kind.FabricRow](writable(t, d, "answers", kind.SectFabricRows))[0]
			slots := kind.Overlays[kind.FabricSlot](writable(t, d,
				kind.FabricOutboxName(a.Address().Outbox), kind.SectFabricSlots))
			row.Head.Store(0)
			row.Control.Store(1 << 50)
			row.Granted.Store(1 << 60)
			slots[0].Seq.Store(1 << 40)
			slots[2].More[1].Store(40000)
			slots[2].Head.Store(kind.FabricMessage | kind.FabricInPool | 0xffffffff<<32)
			slots[3].More[1].Store(1 << 60)
			slots[3].Head.Store(kind.FabricMessage | kind.FabricInPool | 1<<32)
		}, numbers{ctl.LaneAdopted, 1 << 40, 0, 8, 1 << 60, 8, 4}},
	} {
		c.do()
		in := shmtest.Got(ctl.ShowObject(d, "answers")).Or(t)
		out := shmtest.Got(ctl.ShowObject(d, kind.FabricOutboxName(a.Address().Outbox))).Or(t)
		if len(in.Fabric.Lanes) != 1 || len(out.Outbox.Lanes) != 1 || out.Outbox.Endpoint != "asks" {
			t.Fatalf("%+v\n%+v", in.Fabric, out.Outbox)
		}
		l, to := in.Fabric.Lanes[0], out.Outbox.Lanes[0]
		if *l.Peer != "asks" || *to.Peer != "answers" || l.PeerOutbox != out.Name ||
			to.PeerOutbox != in.Fabric.Outbox || *l.PID != os.Getpid() || l.State != ctl.StateOpen {
			t.Errorf("%+v\n%+v", l, to)
		}
		got := numbers{*l.Stage, *l.Sent, *l.Examined, *l.Unexamined, *l.GrantedBytes, *l.Controls,
			out.Outbox.ChunksOut}
		if got != c.want {
			t.Errorf("%+v, want %+v", got, c.want)
		}
		to.Peer, to.PeerOutbox, to.Parked = l.Peer, l.PeerOutbox, l.Parked
		if diff := cmp.Diff(l, to); diff != "" {
			t.Errorf("-receiver +sender:\n%s", diff)
		}
	}
	// What the other end had to tell is not known when that is gone.
	name := kind.FabricOutboxName(b.Address().Outbox)
	must(t, os.Rename(filepath.Join(d.Path(), name), filepath.Join(d.Path(), "aside")))
	out := shmtest.Got(ctl.ShowObject(d, kind.FabricOutboxName(a.Address().Outbox))).Or(t)
	if l := out.Outbox.Lanes[0]; l.State != ctl.StateClosed || l.Peer != nil || l.Examined != nil ||
		l.Stage != nil || *l.Sent != 1<<40 || l.PeerOutbox != name {
		t.Errorf("%+v", l)
	}
	must(t, os.Rename(filepath.Join(d.Path(), "aside"), filepath.Join(d.Path(), name)))
}

func init() { roles["owner of all"] = childOwnerOfAll }

// childOwnerOfAll owns an object of each kind, and the lane of a writer, and has a copy that keeps
// its locks.
func childOwnerOfAll() {
	d := shmtest.Needs(shm.OpenDir(""))
	shmtest.Needs(cq.Create(cq.Named(d, "queue"), cq.Options{Size: 4}))
	shmtest.Needs(cq.CreateEvents(cq.Named(d, "events"), cq.EventOptions{Size: 4}))
	shmtest.Needs(cq.CreateAddresses(cq.Named(d, "addresses"), cq.AddressOptions{Count: 4}))
	shmtest.Needs(cq.Attach(context.Background(), cq.Named(d, "ours"), cq.WriterOptions{}))
	pid := shmtest.Needs(shmtest.Fork())
	say("%d", pid)
	untilTold()
}

// TestStates: what becomes of an owner is the same word in whatever it owns.
func TestStates(t *testing.T) {
	d := ownDir(t)
	shmtest.Have(cq.Create(cq.Named(d, "ours"), cq.Options{Size: 4})).In(t)
	owner := startChild(t, d, "owner of all")
	var copied int
	shmtest.Got(fmt.Sscan(owner.Line(t), &copied)).Or(t)
	heir := shmtest.Got(os.FindProcess(copied)).Or(t)
	defer heir.Kill()
	states := func() []string {
		var all []string
		for _, name := range []string{"queue", "events"} {
			q := shmtest.Got(ctl.Show(d, name)).Or(t)
			all = append(all, *q.State)
		}
		o := shmtest.Got(ctl.ShowObject(d, "addresses")).Or(t)
		q := shmtest.Got(ctl.Show(d, "ours")).Or(t)
		return append(all, o.State, q.Lanes[1].State)
	}
	for _, c := range []struct {
		state string
		make  func()
	}{
		{ctl.StateOpen, func() {}},
		{ctl.StateStopped, func() { must(t, owner.Process.Signal(syscall.SIGSTOP)) }},
		{ctl.StateOpen, func() { must(t, owner.Process.Signal(syscall.SIGCONT)) }},
		{ctl.StateLockKept, owner.Kill},
		{ctl.StateDead, func() { must(t, heir.Kill()) }},
	} {
		c.make()
		want := slices.Repeat([]string{c.state}, 4)
		var got []string
		for range 5000 { // the kernel stops and buries in its own time
			if got = states(); slices.Equal(got, want) {
				break
			}
			time.Sleep(2 * time.Millisecond)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%v, want %s", got, c.state)
		}
	}
}

// TestMonitorSince: how long nothing came is not known at the first look, at least the time since
// then while nothing comes, and afterwards the time since it was seen.
func TestMonitorSince(t *testing.T) {
	d := openDir(t)
	q, w := queue(t, d, "since", cq.Options{Size: 8})
	m := ctl.NewMonitor(d)
	defer m.Close()
	look := func() (posted, read *ctl.Since) {
		got := shmtest.Got(m.Show("since")).Or(t)
		return got.SincePosted, got.SinceRead
	}
	if p, r := look(); p != nil || r != nil {
		t.Errorf("at the first look: %v, %v", p, r)
	}
	began := time.Now()
	if p, r := look(); p == nil || r == nil || !p.More || !r.More || p.Ns <= 0 ||
		r.Ns > int64(time.Minute) {
		t.Errorf("nothing came: %v, %v", p, r)
	}
	must(t, w.Post(&cq.Entry{}))
	if p, r := look(); p.More || p.Ns != 0 || !r.More {
		t.Errorf("posted: %v, %v", p, r)
	}
	shmtest.Got(cq.Read(q, make([]cq.Context, 4))).Or(t)
	if p, r := look(); p.More || p.Ns <= 0 || r.More || r.Ns != 0 {
		t.Errorf("read: %v, %v", p, r)
	}
	if p, r := look(); p.Ns <= r.Ns || p.Ns > int64(time.Since(began)) {
		t.Errorf("later: %v, %v", p, r)
	}
}
