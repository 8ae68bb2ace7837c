package cq_test

import (
	"context"
	"errors"
	"io"
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
	alone, err := cq.Plan(o, 0)
	must(t, err)
	two, err := cq.Plan(o, 2)
	must(t, err)
	// Slots and error detail of a lane of 128.
	if lane := (two - alone) / 2; lane < 128*128 || alone < lane {
		t.Errorf("%d bytes alone, %d a lane", alone, lane)
	}
	count, err := cq.Plan(cq.CounterOptions{}, 7)
	must(t, err)
	few, err := cq.Plan(cq.AddressOptions{Count: 16}, 7)
	must(t, err)
	many, err := cq.Plan(cq.AddressOptions{Count: 4096}, 0)
	must(t, err)
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
		{cq.ErrClosed, []error{syscall.ESHUTDOWN}},
		{cq.ErrNoWait, []error{syscall.ENOSYS, cq.Errno(syscall.ENOSYS)}},
		{cq.ErrInvalid, []error{syscall.EINVAL, cq.Errno(syscall.EINVAL)}},
		{cq.ErrFormat, []error{syscall.EINVAL, cq.Errno(syscall.EINVAL)}},
		{cq.ErrBusy, []error{syscall.EBUSY, cq.Errno(syscall.EBUSY)}},
		{cq.ErrLanes, []error{syscall.ENOSPC}},
		{cq.ErrCorrupt, []error{syscall.EBADMSG, shm.ErrCorrupt}},
		{cq.ETrunc, []error{syscall.EMSGSIZE}},
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
	q, err := cq.Create(p, cq.Options{})
	must(t, err)
	must(t, q.Detach())
	q, err = cq.Open(p, o)
	must(t, err)
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
