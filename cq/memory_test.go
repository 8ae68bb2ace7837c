package cq_test

import (
	"fmt"
	"syscall"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

const (
	payloadSection = shm.SectionKind(0x900)
	payloadBytes   = 3 * 4096
	allRemote      = cq.FlagRemoteRead | cq.FlagRemoteWrite
)

// payload makes an object with two sections of the same size.
func payload(t testing.TB, d *shm.Dir) (obj *shm.Object, offset uint64) {
	t.Helper()
	spec := shm.Spec{Kind: shm.KindRegion, Name: "payload", Sections: []shm.Section{
		{Kind: payloadSection, Length: payloadBytes},
		{Kind: payloadSection + 1, Length: payloadBytes}}}
	var err error
	if d == nil {
		obj, err = shm.CreateMemfd(spec, nil)
	} else {
		obj, err = d.Create("mr."+queueName(t), spec, nil)
	}
	must(t, err)
	t.Cleanup(func() {
		if d != nil {
			_ = obj.Unlink()
		}
		_ = obj.Close()
	})
	_, s, err := obj.Section(payloadSection, 0)
	must(t, err)
	return obj, s.Offset
}

func register(t testing.TB, obj *shm.Object, o cq.MemoryOptions) *cq.MemoryRegion {
	t.Helper()
	return shmtest.Have(cq.RegisterMemory(obj, o)).In(t)
}

func TestRegisterMemory(t *testing.T) {
	obj, at := payload(t, nil)
	for _, o := range []cq.MemoryOptions{
		{Offset: at, Length: payloadBytes, Access: cq.FlagSend},
		{Offset: at + 5, Length: 1, Access: allRemote},
		{Offset: at + payloadBytes, Length: payloadBytes, Access: cq.FlagRecv | cq.FlagRead},
		{Offset: at, Length: 7, Access: cq.FlagWrite | cq.FlagCollective, RequestedKey: 42,
			UserContext: "mine"},
	} {
		r := register(t, obj, o)
		if r.Key() == 0 || r.Key() == cq.KeyNotAvail ||
			o.RequestedKey != 0 && r.Key() != o.RequestedKey {
			t.Errorf("key %#x", r.Key())
		}
		if got := r.Options(); got.RequestedKey != r.Key() || got.UserContext != o.UserContext {
			t.Errorf("%+v", got)
		}
		mem, err := r.View(0, o.Length, o.Access)
		if err != nil || uint64(len(mem)) != o.Length || &mem[0] != &obj.Bytes()[o.Offset] {
			t.Errorf("%+v: %d bytes, %v", o, len(mem), err)
		}
	}
	a := register(t, obj, cq.MemoryOptions{Offset: at, Length: 1, Access: cq.FlagSend})
	b := register(t, obj, cq.MemoryOptions{Offset: at, Length: 1, Access: cq.FlagSend})
	if a.Key() == b.Key() || a.FID() == b.FID() || a.FID().Kind != cq.FIDMemory {
		t.Errorf("%v %v", a.FID(), b.FID())
	}
}

func TestRegisterMemoryRefuses(t *testing.T) {
	d := openDir(t)
	obj, at := payload(t, d)
	inspected := shmtest.Have(d.Open(obj.Name(), shm.Inspect)).In(t)
	taken := register(t, obj, cq.MemoryOptions{Offset: at, Length: 1, Access: cq.FlagSend,
		RequestedKey: 77})
	invalid := map[string]cq.MemoryOptions{
		"nothing":        {Offset: at, Access: cq.FlagSend},
		"header":         {Length: 8, Access: cq.FlagSend},
		"over the end":   {Offset: at + 1, Length: payloadBytes, Access: cq.FlagSend},
		"behind":         {Offset: at + 2*payloadBytes, Length: 1, Access: cq.FlagSend},
		"overflow":       {Offset: at + 8, Length: ^uint64(0) - 4, Access: cq.FlagSend},
		"far":            {Offset: ^uint64(0), Length: 1, Access: cq.FlagSend},
		"no access":      {Offset: at, Length: 1},
		"strange access": {Offset: at, Length: 1, Access: cq.FlagMsg},
		"impossible key": {Offset: at, Length: 1, Access: cq.FlagSend, RequestedKey: cq.KeyNotAvail},
	}
	for name, o := range invalid {
		_, err := cq.RegisterMemory(obj, o)
		wantErr(t, name, err, cq.ErrInvalid, syscall.EINVAL)
	}
	o := cq.MemoryOptions{Offset: at, Length: 1, Access: cq.FlagRecv, RequestedKey: 77}
	_, err := cq.RegisterMemory(nil, o)
	wantErr(t, "no object", err, cq.ErrInvalid)
	_, err = cq.RegisterMemory(obj, o)
	wantErr(t, "key in use", err, cq.ErrNoKey, cq.ENoKey)
	_, err = cq.RegisterMemory(inspected, o)
	wantErr(t, "not to be written", err, syscall.EACCES)
	must(t, taken.Close())
	again := register(t, obj, cq.MemoryOptions{Offset: at, Length: 1, Access: cq.FlagSend,
		RequestedKey: 77})
	if again.Key() != 77 || taken.Key() != cq.KeyNotAvail {
		t.Errorf("%d, %#x", again.Key(), taken.Key())
	}
	must(t, taken.Close())
	_, err = cq.RegisterMemory(obj, o)
	wantErr(t, "key after a second close of its former region", err, cq.ErrNoKey)
}

func TestMemoryView(t *testing.T) {
	obj, at := payload(t, nil)
	r, err := cq.RegisterMemory(obj, cq.MemoryOptions{Offset: at, Length: 100,
		Access: cq.FlagRemoteRead | cq.FlagSend})
	must(t, err)
	for _, ok := range [][2]uint64{{0, 100}, {99, 1}, {100, 0}, {0, 0}} {
		mem, err := r.View(ok[0], ok[1], cq.FlagRemoteRead)
		if err != nil || uint64(len(mem)) != ok[1] || uint64(cap(mem)) != ok[1] {
			t.Errorf("%v: %d, %v", ok, len(mem), err)
		}
	}
	for _, bad := range [][2]uint64{{0, 101}, {100, 1}, {101, 0}, {1 << 63, 1 << 63},
		{5, ^uint64(0)}} {
		_, err := r.View(bad[0], bad[1], cq.FlagRemoteRead)
		wantErr(t, fmt.Sprint(bad), err, cq.ErrInvalid)
	}
	for _, access := range []cq.Flags{0, cq.FlagRemoteWrite, allRemote} {
		_, err := r.View(0, 1, access)
		wantErr(t, fmt.Sprint(access), err, syscall.EACCES)
	}
	must(t, r.Close())
	_, err = r.View(0, 1, cq.FlagRemoteRead)
	wantErr(t, "closed", err, cq.ErrNotRegistered, cq.EOpBadState)
}

// TestRegisterAsync: how a registration ends is an event, and one that nobody read goes with its
// region.
func TestRegisterAsync(t *testing.T) {
	shmtest.Conforms(t)
	obj, at := payload(t, nil)
	eq := events(t, cq.EventOptions{Size: 4})
	good := cq.MemoryOptions{Offset: at, Length: 9, Access: allRemote, RequestedKey: 5, Events: eq,
		Context: 1}
	r, err := cq.RegisterMemory(obj, good)
	must(t, err)
	wantErr(t, "close of the queue", eq.Close(), cq.ErrBusy)
	wantEvents(t, eq, r.FID(), "memory registered 1 0")
	if r.Key() != 5 {
		t.Errorf("key %d", r.Key())
	}
	for i, tt := range []struct {
		length, key uint64
		want        string
	}{{9, 5, "key not available"}, {0, 6, "invalid argument"}} {
		bad, err := cq.RegisterMemory(obj, cq.MemoryOptions{Offset: at, Length: tt.length,
			Access: allRemote, RequestedKey: tt.key, Events: eq, Context: uint64(i)})
		must(t, err)
		wantEvents(t, eq, bad.FID(), fmt.Sprintf("%s %d 0", tt.want, i))
		if bad.Key() != cq.KeyNotAvail {
			t.Error("it has a key")
		}
		must(t, bad.Close())
	}
	var open []*cq.MemoryRegion
	for range 4 {
		o := good
		o.RequestedKey, o.Context, o.UserContext = 0, 0, "of the region"
		r, err := cq.RegisterMemory(obj, o)
		must(t, err)
		open = append(open, r)
	}
	_, err = cq.RegisterMemory(obj, good)
	wantErr(t, "no room for its event", err, cq.ErrFull)
	for _, r := range open[:3] {
		must(t, r.Close())
	}
	wantEvents(t, eq, open[3].FID(), "memory registered 0 0")
	must(t, open[3].Close())
	must(t, r.Close())
	must(t, r.Close())
}

// TestRegisterAsyncAndClose: a registration that has not ended does not need its object any more.
func TestRegisterAsyncAndClose(t *testing.T) {
	t.Parallel()
	eq := events(t, cq.EventOptions{Size: 4})
	for i := range uint64(100) {
		obj, at := payload(t, nil)
		r, err := cq.RegisterMemory(obj, cq.MemoryOptions{Offset: at, Length: 9, Access: allRemote,
			Events: eq, Context: i})
		must(t, err)
		must(t, obj.Close())
		wantEvents(t, eq, r.FID(), fmt.Sprintf("memory registered %d 0", i))
		must(t, r.Close())
	}
}

func TestMemoryCounters(t *testing.T) {
	obj, at := payload(t, nil)
	r, err := cq.RegisterMemory(obj, cq.MemoryOptions{Offset: at, Length: 9, Access: allRemote})
	must(t, err)
	writes := tally(t, cq.CounterOptions{})
	both := tally(t, cq.CounterOptions{Events: cq.BytesCounter})
	wantErr(t, "flags", r.BindCounter(writes, cq.FlagSend), cq.ErrInvalid)
	wantErr(t, "none", r.BindCounter(nil, cq.FlagRemoteWrite), cq.ErrInvalid)
	must(t, r.BindCounter(writes, cq.FlagRemoteWrite))
	must(t, r.BindCounter(both, allRemote))
	must(t, r.Count(cq.FlagRemoteWrite, 9))
	must(t, r.Count(cq.FlagRemoteRead, 9))
	wantCounter(t, writes, 1, 0)
	wantCounter(t, both, 18, 0)
	wantErr(t, "close of a counter", both.Close(), cq.ErrBusy)
	wantErr(t, "close", r.Close(), cq.ErrBusy, syscall.EBUSY)
	must(t, r.BindCounter(writes, 0))
	wantErr(t, "close", r.Close(), cq.ErrBusy)
	wantErr(t, "not bound", r.BindCounter(writes, 0), cq.ErrInvalid)
	must(t, r.BindCounter(both, 0))
	must(t, r.Close())
	wantErr(t, "closed", r.BindCounter(both, allRemote), cq.ErrClosed)
}
