package cq_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"reflect"
	"slices"
	"strings"
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
	r := shmtest.Got(cq.RegisterMemory(obj, cq.MemoryOptions{Offset: at, Length: 100,
		Access: cq.FlagRemoteRead | cq.FlagSend})).Or(t)
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
	_, err := r.View(0, 1, cq.FlagRemoteRead)
	wantErr(t, "closed", err, cq.ErrNotRegistered, cq.EOpBadState)
}

// TestRegisterAsync: how a registration ends is an event, and one that nobody read goes with its
// region.
func TestRegisterAsync(t *testing.T) {
	shmtest.Conforms(t)
	obj, at := payload(t, nil)
	_, eq := createEvents(t, cq.EventOptions{Size: 4})
	good := cq.MemoryOptions{Offset: at, Length: 9, Access: allRemote, RequestedKey: 5, Events: eq,
		Context: 1}
	r := shmtest.Got(cq.RegisterMemory(obj, good)).Or(t)
	wantErr(t, "close of the queue", eq.Close(), cq.ErrBusy)
	wantEvents(t, eq, r.FID(), "memory registered 1 0")
	if r.Key() != 5 {
		t.Errorf("key %d", r.Key())
	}
	for i, tt := range []struct {
		length, key uint64
		want        string
	}{{9, 5, "key not available"}, {0, 6, "invalid argument"}} {
		bad := shmtest.Got(cq.RegisterMemory(obj, cq.MemoryOptions{Offset: at, Length: tt.length,
			Access: allRemote, RequestedKey: tt.key, Events: eq, Context: uint64(i)})).Or(t)
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
		r := shmtest.Got(cq.RegisterMemory(obj, o)).Or(t)
		open = append(open, r)
	}
	_, err := cq.RegisterMemory(obj, good)
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
	_, eq := createEvents(t, cq.EventOptions{Size: 4})
	for i := range uint64(100) {
		obj, at := payload(t, nil)
		r := shmtest.Got(cq.RegisterMemory(obj, cq.MemoryOptions{Offset: at, Length: 9, Access: allRemote,
			Events: eq, Context: i})).Or(t)
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

// readOne reads one entry as T and says what came.
func readOne[T cq.Readable](q *cq.Queue) (T, error) {
	var dst [1]T
	_, err := cq.Read(q, dst[:])
	return dst[0], err
}

func TestFormatNames(t *testing.T) {
	for f, want := range map[cq.Format]string{cq.FormatUnspec: "unspec", cq.FormatContext: "context",
		cq.FormatMsg: "msg", cq.FormatData: "data", cq.FormatTagged: "tagged", 99: "format 99"} {
		if f.String() != want {
			t.Errorf("%d is %q, want %q", f, f, want)
		}
	}
	for f, want := range map[cq.Flags]string{0: "", cq.FlagSend | cq.FlagMsg: "MSG|SEND",
		cq.FlagRedelivered: "REDELIVERED", 1 << 40: "0x10000000000",
		cq.FlagRecv | 1: "RECV|0x1"} {
		if f.String() != want {
			t.Errorf("%#x is %q, want %q", uint64(f), f, want)
		}
	}
}

// TestOptions checks what is resolved, and read back by whoever opens the queue.
func TestOptions(t *testing.T) {
	shmtest.Conforms(t)
	resolvesOptions(t)
}

func resolvesOptions(t *testing.T) {
	base := cq.Options{Format: cq.FormatTagged, Size: 1024, MaxLanes: 64}
	tests := []struct {
		name string
		in   cq.Options
		set  func(*cq.Options)
	}{
		{"zero", cq.Options{}, func(o *cq.Options) {}},
		{"size 1", cq.Options{Size: 1}, func(o *cq.Options) { o.Size = 1 }},
		{"size 3", cq.Options{Size: 3}, func(o *cq.Options) { o.Size = 4 }},
		{"size 4", cq.Options{Size: 4}, func(o *cq.Options) { o.Size = 4 }},
		{"size 1025", cq.Options{Size: 1025}, func(o *cq.Options) { o.Size = 2048 }},
		{"lanes 1", cq.Options{MaxLanes: 1}, func(o *cq.Options) { o.MaxLanes = 1 }},
		{"most lanes", cq.Options{Size: 1, MaxLanes: cq.MaxLanes},
			func(o *cq.Options) { o.Size, o.MaxLanes = 1, cq.MaxLanes }},
		{"all", cq.Options{Format: cq.FormatMsg, Overrun: cq.OverrunQueue, Lifetime: cq.Persistent,
			Wait: cq.WaitYield, WritersPay: true}, func(o *cq.Options) {
			o.Format, o.Overrun, o.Lifetime = cq.FormatMsg, cq.OverrunQueue, cq.Persistent
			o.Wait, o.WritersPay = cq.WaitYield, true
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.in.UserContext = tt.name
			d, q := create(t, tt.in)
			want := base
			tt.set(&want)
			want.UserContext = tt.name
			got := q.Options()
			want.WritersPay = want.WritersPay || got.WritersPay // where membarrier is forbidden
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%+v, want %+v", got, want)
			}
			if q.UserContext() != tt.name || q.Name() != queueName(t) {
				t.Errorf("context %v, name %q", q.UserContext(), q.Name())
			}
			w := attach(t, d, queueName(t))
			if w.Stats().Size != want.Size || w.Free() != want.Size || w.Lane() != 1 {
				t.Errorf("cap %d, free %d, lane %d", w.Stats().Size, w.Free(), w.Lane())
			}
			must(t, w.Post(&cq.Entry{Context: 9}))
			if got := read(t, q, 2); len(got) != 1 || got[0] != 9 {
				t.Errorf("read %v", got)
			}
		})
	}
}

func TestPlan(t *testing.T) {
	o := cq.Options{Size: 100, MaxLanes: 3}
	alone := shmtest.Got(cq.Plan(o, 0)).Or(t)
	two := shmtest.Got(cq.Plan(o, 2)).Or(t)
	// Slots and error detail of a lane of 128.
	if lane := (two - alone) / 2; lane < 128*128 || alone < lane {
		t.Errorf("%d bytes alone, %d a lane", alone, lane)
	}
	count := shmtest.Got(cq.Plan(cq.CounterOptions{}, 7)).Or(t)
	few := shmtest.Got(cq.Plan(cq.AddressOptions{Count: 16}, 7)).Or(t)
	many := shmtest.Got(cq.Plan(cq.AddressOptions{Count: 4096}, 0)).Or(t)
	if count == 0 || few <= 16*32 || many < few+4080*32 {
		t.Errorf("a counter takes %d bytes, 16 addresses %d, 4096 %d", count, few, many)
	}
	big, err := cq.Plan(cq.EventOptions{Size: 16, DataMaxBytes: 65512}, 2)
	if err != nil || big < 3*16*65536 {
		t.Errorf("events take %d bytes, %v", big, err)
	}
	_, err = cq.Plan(cq.CounterOptions{Lifetime: 9}, 0)
	wantErr(t, "counter", err, cq.ErrInvalid)
	_, err = cq.Plan(cq.AddressOptions{Count: -1}, 0)
	wantErr(t, "addresses", err, cq.ErrInvalid)
}

// errorsMatch: each error is the number of the same meaning, of the system or of fi_errno.
func errorsMatch(t *testing.T) {
	for _, tt := range []struct {
		err     error
		targets []error
	}{
		{cq.ErrWouldBlock, []error{syscall.EAGAIN, cq.Errno(syscall.EAGAIN)}},
		{cq.ErrTimedOut, []error{syscall.ETIMEDOUT, cq.Errno(syscall.ETIMEDOUT),
			os.ErrDeadlineExceeded, context.DeadlineExceeded}},
		{cq.ErrSignaled, []error{syscall.EAGAIN, cq.Errno(syscall.EAGAIN)}},
		{cq.ErrFull, []error{syscall.EAGAIN, cq.Errno(syscall.EAGAIN)}},
		{cq.ErrNoCredit, []error{syscall.EAGAIN}},
		{cq.ErrAvail, []error{cq.EAvail}},
		{cq.ErrOverrun, []error{cq.EOverrun, syscall.EOVERFLOW}},
		{cq.ErrNoKey, []error{cq.ENoKey, syscall.Errno(126)}}, // ENOKEY
		{cq.ErrClosed, []error{syscall.ESHUTDOWN}},
		{cq.ErrNoWait, []error{syscall.ENOSYS, cq.Errno(syscall.ENOSYS), errors.ErrUnsupported}},
		{cq.ErrInvalid, []error{syscall.EINVAL, cq.Errno(syscall.EINVAL)}},
		{cq.ErrFormat, []error{syscall.EINVAL, cq.Errno(syscall.EINVAL)}},
		{cq.ErrBusy, []error{syscall.EBUSY, cq.Errno(syscall.EBUSY)}},
		{cq.ErrLanes, []error{syscall.ENOSPC}},
		{cq.ErrCorrupt, []error{syscall.EBADMSG, shm.ErrCorrupt}},
		{cq.ETrunc, []error{syscall.EMSGSIZE}},
		{cq.Errno(syscall.EACCES), []error{syscall.EACCES, fs.ErrPermission}},
		{&cq.EventError{Err: cq.Errno(syscall.ENOENT)}, []error{syscall.ENOENT, fs.ErrNotExist}},
		{cq.Errno(syscall.ENOENT), []error{syscall.ENOENT}},
		{&cq.ErrorEntry{Err: cq.ETrunc}, []error{cq.ETrunc, syscall.EMSGSIZE}},
		{&cq.LaneError{Err: cq.ErrInvalid}, []error{cq.ErrCorrupt, syscall.EBADMSG, cq.ErrInvalid}},
	} {
		wantErr(t, tt.err.Error(), tt.err, tt.targets...)
		if tt.err.Error() == "" {
			t.Errorf("%#v has no text", tt.err)
		}
	}
	for _, pair := range [][2]error{{cq.ErrWouldBlock, cq.ErrTimedOut},
		{cq.ErrTimedOut, cq.ErrWouldBlock}, {cq.ErrAvail, cq.ErrWouldBlock},
		{cq.ErrTimedOut, syscall.EAGAIN},
		{cq.ErrAvail, syscall.Errno(0)}, {cq.EAvail, syscall.Errno(0)}} {
		if errors.Is(pair[0], pair[1]) {
			t.Errorf("%v is %v", pair[0], pair[1])
		}
	}
}

// TestPlaceOfCall: a call refuses a place that makes no sense for it by name, and takes no other
// for that reason.
func TestPlaceOfCall(t *testing.T) {
	d := openDir(t)
	conn := new(net.UnixConn) // nothing is connected: an error of another kind follows
	places := map[string]cq.Place{"zero": {}, "named": cq.Named(d, "x"), "nowhere": cq.Named(nil, "x"),
		"unnamed": cq.Unnamed("x"), "over": cq.Over(conn), "over nothing": cq.Over(nil),
		"descriptor": cq.FromFD(-1, "")}
	creates, opens, joins := "named unnamed", "named", "named over"
	for call, tt := range map[string]struct {
		takes string
		do    func(cq.Place) error
	}{
		"Create": {creates, func(p cq.Place) error { return closing(cq.Create(p, cq.Options{})) }},
		"CreateEvents": {creates, func(p cq.Place) error {
			return closing(cq.CreateEvents(p, cq.EventOptions{}))
		}},
		"CreateCounter": {creates, func(p cq.Place) error {
			return closing(cq.CreateCounter(p, cq.CounterOptions{}))
		}},
		"CreateAddresses": {creates, func(p cq.Place) error {
			return closing(cq.CreateAddresses(p, cq.AddressOptions{}))
		}},
		"Open": {opens, func(p cq.Place) error { return closing(cq.Open(p, cq.Options{})) }},
		"OpenEvents": {opens, func(p cq.Place) error {
			return closing(cq.OpenEvents(p,
				cq.EventOptions{}))
		}},
		"OpenAddresses": {opens, func(p cq.Place) error {
			return closing(cq.OpenAddresses(p, cq.AddressOptions{}))
		}},
		"Attach": {joins, func(p cq.Place) error {
			return closing(cq.Attach(context.Background(), p, cq.WriterOptions{}))
		}},
		"AttachEvents": {joins, func(p cq.Place) error {
			return closing(cq.AttachEvents(context.Background(), p, cq.WriterOptions{}))
		}},
		"AttachCounter": {"named descriptor", func(p cq.Place) error {
			return closing(cq.AttachCounter(p, cq.CounterOptions{}))
		}},
		"AttachAddresses": {"named descriptor", func(p cq.Place) error {
			return closing(cq.AttachAddresses(p))
		}},
		"Remove":      {opens, cq.Remove},
		"SignalQueue": {opens, cq.SignalQueue},
	} {
		for name, place := range places {
			err := tt.do(place)
			var e *cq.Error
			refused := errors.As(err, &e) && e.Field == "Place" && errors.Is(err, cq.ErrInvalid)
			if takes := slices.Contains(strings.Fields(tt.takes), name); refused == takes {
				t.Errorf("%s of %s: %v", call, name, err)
			}
		}
	}
}

// closing closes what a call made, and returns the call's error.
func closing[C io.Closer](c C, err error) error {
	if err == nil {
		err = c.Close()
	}
	return err
}

// TestExisting: Create refuses to be told to take over, and who took over is not told so later.
func TestExisting(t *testing.T) {
	p := cq.Named(openDir(t), "x")
	o, e := cq.Options{Existing: true}, cq.EventOptions{Existing: true}
	a := cq.AddressOptions{Existing: true}
	for name, err := range map[string]error{"queue": closing(cq.Create(p, o)),
		"events": closing(cq.CreateEvents(p, e)), "addresses": closing(cq.CreateAddresses(p, a))} {
		wantErr(t, name, err, cq.ErrInvalid)
		wantField(t, err, "Existing")
	}
	q := shmtest.Got(cq.Create(p, cq.Options{})).Or(t)
	must(t, q.Detach())
	q = shmtest.Got(cq.Open(p, o)).Or(t)
	if q.Options().Existing {
		t.Error("it is an option of the queue")
	}
	must(t, q.Close())
}

// postFrom posts a completion of data from an address, as an endpoint of anybody's own does: the
// source is what the vector calls it (FI_SOURCE), and with sourceErr one that is not in there makes
// an error entry (FI_SOURCE_ERR).
func postFrom(w *cq.Writer, e *cq.Entry, raw []byte, v *cq.AddressVector, sourceErr bool) error {
	from, known := v.Resolve(raw)
	if !known && sourceErr {
		return w.PostError(&cq.ErrorEntry{Context: e.Context, Flags: e.Flags, Len: e.Len, Buf: e.Buf,
			Data: e.Data, Tag: e.Tag, Err: cq.Errno(syscall.EADDRNOTAVAIL), ErrData: raw})
	}
	c := *e
	c.Src = cq.From(from)
	return w.Post(&c)
}
