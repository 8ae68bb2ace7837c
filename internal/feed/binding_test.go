package feed_test

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"syscall"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/feed"
	"github.com/shmring/shmring/internal/shmtest"
)

func TestMain(m *testing.M) { shmtest.Main(m) }

var must = shmtest.Must

var wantErr = shmtest.WantErr

// first is the error of a read.
func first(_ int, err error) error { return err }

// pair makes a queue and a writer of it.
func pair(t testing.TB, o cq.Options) (*cq.Queue, *cq.Writer) {
	t.Helper()
	q := shmtest.Got(cq.Create(cq.Unnamed("feed"), o)).Or(t)
	w := shmtest.Got(q.Writer()).Or(t)
	t.Cleanup(func() { must(t, errors.Join(w.Close(), q.Close())) })
	return q, w
}

// takeAll reads what is there, as contexts; those of errors behind an E.
func takeAll(t *testing.T, q *cq.Queue) (out []string) {
	t.Helper()
	dst := make([]cq.Context, 3)
	for {
		n, err := cq.Read(q, dst)
		for _, e := range dst[:n] {
			out = append(out, fmt.Sprint(e.Context))
		}
		switch err {
		case nil:
		case cq.ErrAvail:
			var failed cq.ErrorEntry
			must(t, q.ReadErr(&failed))
			out = append(out, fmt.Sprintf("E%d", failed.Context))
		case cq.ErrWouldBlock:
			return out
		default:
			t.Fatal(err)
		}
	}
}

// tally makes a counter without a name.
func tally(t testing.TB, o cq.CounterOptions) *cq.Counter {
	t.Helper()
	return shmtest.Have(cq.CreateCounter(cq.Unnamed("tally"), o)).In(t)
}

func wantCounter(t testing.TB, c *cq.Counter, value, errs uint64) {
	t.Helper()
	v := shmtest.Got(c.Read()).Or(t)
	e := shmtest.Got(c.ReadErr()).Or(t)
	if v != value || e != errs {
		t.Errorf("counted %d and %d failures, want %d and %d", v, e, value, errs)
	}
}

// TestBoundCounter is a counter bound to an endpoint: each operation that ends counts once, or its
// bytes do, as what became of it.
func TestBoundCounter(t *testing.T) {
	shmtest.Conforms(t)
	kinds := []cq.Flags{cq.FlagSend, cq.FlagRecv, cq.FlagRead, cq.FlagWrite, cq.FlagRemoteRead,
		cq.FlagRemoteWrite}
	q, w := pair(t, cq.Options{Size: 16})
	for _, of := range kinds {
		c, bytes := tally(t, cq.CounterOptions{}), tally(t, cq.CounterOptions{Events: cq.BytesCounter})
		b := shmtest.Got(feed.Bind(feed.Options{Queue: w, Flags: cq.FlagTransmit | cq.FlagRecv,
			Counters: map[*cq.Counter]cq.Flags{c: of, bytes: of}})).Or(t)
		for _, kind := range kinds {
			for range 2 {
				must(t, b.Begin(0))
				must(t, b.Fail(&cq.ErrorEntry{Flags: kind, Len: 5, Err: cq.EOther}, 0))
			}
			must(t, b.Begin(0))
			must(t, b.Complete(&cq.Entry{Flags: kind, Len: 5}, 0))
			must(t, b.Begin(0))
			b.Drop(0)
			_ = takeAll(t, q)
		}
		wantCounter(t, c, 1, 2)
		wantCounter(t, bytes, 5, 2)
		must(t, b.Close())
	}
}

// asking are the flags by which an operation asks for a completion, under selective completion.
var asking = []cq.Flags{cq.FlagCompletion, cq.FlagInjectComplete, cq.FlagTransmitComplete,
	cq.FlagDeliveryComplete, cq.FlagCommitComplete, cq.FlagMatchComplete}

// subsets returns every combination of some flags.
func subsets(of []cq.Flags) []cq.Flags {
	out := []cq.Flags{0}
	for _, f := range of {
		for _, s := range slices.Clone(out) {
			out = append(out, s|f)
		}
	}
	return out
}

// TestCompletionTable is T46 in every combination: what was bound, the call, what the operation
// asked for, what completes, how it ends.
func TestCompletionTable(t *testing.T) {
	shmtest.Conforms(t)
	q, w := pair(t, cq.Options{Size: 8})
	count, other := tally(t, cq.CounterOptions{}), tally(t, cq.CounterOptions{})
	ops := subsets(append([]cq.Flags{cq.FlagInject, cq.FlagInjectCall}, asking...))
	for _, selective := range []cq.Flags{0, cq.FlagSelectiveCompletion} {
		for _, side := range []cq.Flags{cq.FlagTransmit, cq.FlagRecv, cq.FlagTransmit | cq.FlagRecv} {
			for _, kind := range []cq.Flags{cq.FlagSend | cq.FlagMsg, cq.FlagRecv | cq.FlagTagged,
				cq.FlagRMA | cq.FlagRead, cq.FlagAtomic | cq.FlagWrite} {
				bound := kind&cq.FlagRecv != 0 && side&cq.FlagRecv != 0 ||
					kind&cq.FlagRecv == 0 && side&cq.FlagTransmit != 0
				for _, op := range ops {
					expect := op&cq.FlagInjectCall == 0 &&
						(selective == 0 || op&^cq.FlagInject != 0)
					row := fmt.Sprintf("bound %v %v, kind %v, op %v", side, selective, kind, op)
					b := shmtest.Got(feed.Bind(feed.Options{Queue: w, Flags: selective | side,
						Counters: map[*cq.Counter]cq.Flags{count: kind & counted, other: cq.FlagRemoteRead}})).Or(t)
					must(t, errors.Join(count.Set(0), count.SetErr(0)))
					if bound {
						tableRow(t, row, q, w, b, kind, op, expect)
						wantCounter(t, count, 1, 1)
					} else {
						wantErr(t, row, b.Complete(&cq.Entry{Flags: kind}, op), cq.ErrInvalid)
						wantErr(t, row, b.Fail(&cq.ErrorEntry{Flags: kind}, op), cq.ErrInvalid)
						wantCounter(t, count, 0, 0)
					}
					must(t, b.Close())
				}
			}
		}
	}
	wantCounter(t, other, 0, 0)
}

const counted = cq.FlagSend | cq.FlagRecv | cq.FlagRead | cq.FlagWrite

func tableRow(t *testing.T, row string, q *cq.Queue, w *cq.Writer, b *feed.Binding,
	kind, op cq.Flags, expect bool) {
	t.Helper()
	must(t, b.Begin(op))
	if held := w.Credits().Len() == 1; held != expect || b.Wants(op) != expect {
		t.Errorf("%s: room reserved: %v, wants %v", row, held, b.Wants(op))
	}
	must(t, b.Complete(&cq.Entry{Context: 1, Flags: kind}, op))
	must(t, b.Begin(op))
	must(t, b.Fail(&cq.ErrorEntry{Context: 2, Flags: kind, Err: cq.ETrunc}, op))
	var want []string
	if expect {
		want = append(want, "1")
	}
	if op&cq.FlagInjectCall == 0 {
		want = append(want, "E2")
	} else {
		want = append(want, "E0") // the call has no context
	}
	if got := takeAll(t, q); !slices.Equal(got, want) {
		t.Errorf("%s: %v, want %v", row, got, want)
	}
	if w.Credits().Len() != 0 {
		t.Errorf("%s: %d credits left", row, w.Credits().Len())
	}
}

func TestBindingOptions(t *testing.T) {
	_, w := pair(t, cq.Options{Size: 4})
	c := tally(t, cq.CounterOptions{})
	for field, options := range map[string][]feed.Options{
		"Flags": {
			{Queue: w},
			{Queue: w, Flags: cq.FlagSelectiveCompletion},
			{Queue: w, Flags: cq.FlagTransmit | cq.FlagRead},
		},
		"Queue": {{Flags: cq.FlagRecv}},
		"Counters": {
			{Flags: cq.FlagRecv, Counters: map[*cq.Counter]cq.Flags{nil: cq.FlagRecv}},
			{Flags: cq.FlagRecv, Counters: map[*cq.Counter]cq.Flags{c: 0}},
			{Flags: cq.FlagRecv, Counters: map[*cq.Counter]cq.Flags{c: cq.FlagMsg}},
		},
	} {
		for _, o := range options {
			_, err := feed.Bind(o)
			wantErr(t, field, err, cq.ErrInvalid, syscall.EINVAL)
			var e *cq.Error
			if !errors.As(err, &e) || e.Field != field {
				t.Errorf("%v: want one about %s", err, field)
			}
		}
	}
}

// TestBindingRoom: an operation that reports is refused while there is no room, and one that was
// accepted always finds it.
func TestBindingRoom(t *testing.T) {
	q, w := pair(t, cq.Options{Size: 4})
	b := shmtest.Got(feed.Bind(feed.Options{Queue: w,
		Flags: cq.FlagTransmit | cq.FlagSelectiveCompletion})).Or(t)
	send := cq.FlagSend | cq.FlagMsg
	for range 4 {
		must(t, b.Begin(cq.FlagCompletion))
	}
	wantErr(t, "fifth", b.Begin(cq.FlagCompletion), cq.ErrFull, syscall.EAGAIN)
	b.Drop(cq.FlagCompletion)
	must(t, b.Begin(cq.FlagCompletion))
	b.Drop(0) // it held nothing
	must(t, b.Begin(0))
	err := b.Fail(&cq.ErrorEntry{Context: 9, Flags: send, Err: cq.EOther}, 0)
	wantErr(t, "an error without room", err, cq.ErrFull)
	for i := range uint64(3) {
		must(t, b.Complete(&cq.Entry{Context: i, Flags: send}, cq.FlagCompletion))
	}
	must(t, b.Fail(&cq.ErrorEntry{Context: 3, Flags: send, Err: cq.EOther}, cq.FlagCompletion))
	wantErr(t, "more than began", b.Complete(&cq.Entry{Flags: send}, cq.FlagCompletion),
		cq.ErrNoCredit)
	if got := takeAll(t, q); !slices.Equal(got, []string{"0", "1", "2", "E3"}) {
		t.Error(got)
	}
	for _, tt := range []struct{ expect, begin, held int }{{3, 1, 3}, {0, 0, 1}, {5, 2, 3}, {0, 0, 3},
		{1, 0, 4}, {1, 1, 4}} {
		b.Expect(tt.expect)
		must(t, b.Begin(0))
		for range tt.begin {
			must(t, b.Begin(cq.FlagCompletion))
		}
		if n := w.Credits().Len(); n != tt.held {
			t.Errorf("%d credits after %+v", n, tt)
		}
	}
	wantErr(t, "fifth of a batch", b.Begin(cq.FlagCompletion), cq.ErrFull)
	must(t, b.Close())
	must(t, b.Close())
	b.Expect(1)
	if w.Credits().Len() != 0 {
		t.Errorf("%d credits left", w.Credits().Len())
	}
	for _, err := range []error{b.Begin(0), b.Complete(&cq.Entry{Flags: send}, 0),
		b.Fail(&cq.ErrorEntry{Flags: send}, 0), b.CompleteTarget(&cq.Entry{Flags: send}),
		b.CompleteUnknown(&cq.Entry{Flags: send}, 0, nil)} {
		wantErr(t, "closed", err, cq.ErrClosed)
	}
}

// TestBindingOverrun: a queue that is made to overrun refuses no operation, and does.
func TestBindingOverrun(t *testing.T) {
	for name, end := range map[string]func(*feed.Binding) error{
		"completion": func(b *feed.Binding) error {
			return b.Complete(&cq.Entry{Flags: cq.FlagSend}, cq.FlagCompletion)
		},
		"error": func(b *feed.Binding) error {
			return b.Fail(&cq.ErrorEntry{Flags: cq.FlagSend, Err: cq.EOther}, 0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			q, w := pair(t, cq.Options{Size: 2, Overrun: cq.OverrunQueue})
			count := tally(t, cq.CounterOptions{})
			b := shmtest.Have(feed.Bind(feed.Options{Queue: w,
				Flags:    cq.FlagTransmit | cq.FlagSelectiveCompletion,
				Counters: map[*cq.Counter]cq.Flags{count: cq.FlagSend}})).In(t)
			for range 4 {
				must(t, b.Begin(cq.FlagCompletion))
			}
			b.Drop(cq.FlagCompletion)
			for range 2 {
				must(t, end(b))
			}
			wantErr(t, "third", end(b), cq.ErrOverrun)
			var err error
			for err == nil || err == cq.ErrAvail {
				if _, err = cq.Read(q, make([]cq.Msg, 1)); err == cq.ErrAvail {
					must(t, q.ReadErr(&cq.ErrorEntry{}))
				}
			}
			wantErr(t, "read", err, cq.ErrOverrun)
			if v, _ := count.Read(); name == "completion" && v != 3 {
				t.Errorf("%d counted", v)
			}
			if v, _ := count.ReadErr(); name == "error" && v != 3 {
				t.Errorf("%d failures counted", v)
			}
		})
	}
}

// TestMultiRecvRelease: what gives the buffer back is posted also where no completion was asked
// for, in both styles, and has its room.
func TestMultiRecvRelease(t *testing.T) {
	message := cq.FlagRecv | cq.FlagMsg
	for _, tt := range []struct {
		name      string
		selective cq.Flags
		op        cq.Flags
		last      cq.Flags // flags of the entry that gives it back
		want      []string
		counted   uint64
	}{
		{"ordinary, with the last message", 0, 0, message | cq.FlagMultiRecv,
			[]string{"1", "2", "3"}, 3},
		{"ordinary, by itself", 0, 0, cq.FlagMultiRecv, []string{"1", "2", "3"}, 2},
		{"selective, with the last message", cq.FlagSelectiveCompletion, 0, message | cq.FlagMultiRecv,
			[]string{"3"}, 3},
		{"selective, by itself", cq.FlagSelectiveCompletion, 0, cq.FlagMultiRecv, []string{"3"}, 2},
		{"selective, asked for", cq.FlagSelectiveCompletion, cq.FlagCompletion, cq.FlagMultiRecv,
			[]string{"1", "2", "3"}, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			q, w := pair(t, cq.Options{Size: 4})
			count := tally(t, cq.CounterOptions{})
			b := shmtest.Have(feed.Bind(feed.Options{Queue: w, Flags: cq.FlagRecv | tt.selective,
				Counters: map[*cq.Counter]cq.Flags{count: cq.FlagRecv}})).In(t)
			op := tt.op | cq.FlagMultiRecv
			must(t, b.Begin(op))
			if w.Credits().Len() != 1 {
				t.Errorf("%d credits", w.Credits().Len())
			}
			must(t, b.Complete(&cq.Entry{Context: 1, Flags: message}, op))
			must(t, b.Complete(&cq.Entry{Context: 2, Flags: message}, op))
			for w.Post(&cq.Entry{}) == nil { // until there is room for nothing but the release
			}
			must(t, b.Complete(&cq.Entry{Context: 3, Flags: tt.last}, op))
			got := slices.DeleteFunc(takeAll(t, q), func(s string) bool { return s == "0" })
			if !slices.Equal(got, tt.want) || w.Credits().Len() != 0 {
				t.Errorf("%v, %d credits", got, w.Credits().Len())
			}
			wantCounter(t, count, tt.counted, 0)
		})
	}
}

// TestTargetCompletions: what a peer did here is counted, and completes if it carries data.
func TestTargetCompletions(t *testing.T) {
	q, w := pair(t, cq.Options{Size: 4})
	reads, writes := tally(t, cq.CounterOptions{}), tally(t, cq.CounterOptions{})
	b := shmtest.Have(feed.Bind(feed.Options{Queue: w, Flags: cq.FlagRecv,
		Counters: map[*cq.Counter]cq.Flags{reads: cq.FlagRemoteRead, writes: cq.FlagRemoteWrite}})).In(t)
	write := cq.FlagRMA | cq.FlagRemoteWrite
	must(t, b.CompleteTarget(&cq.Entry{Flags: cq.FlagRMA | cq.FlagRemoteRead}))
	must(t, b.CompleteTarget(&cq.Entry{Flags: write}))
	must(t, b.CompleteTarget(&cq.Entry{Context: 99, Flags: write | cq.FlagRemoteCQData, Data: 7}))
	dst := make([]cq.Data, 4)
	n, err := cq.Read(q, dst)
	if n != 1 || err != nil || dst[0].Context != 0 || dst[0].Data != 7 ||
		dst[0].Flags != write|cq.FlagRemoteCQData|cq.FlagNoContext {
		t.Errorf("%d, %v, %+v", n, err, dst[0])
	}
	wantCounter(t, reads, 1, 0)
	wantCounter(t, writes, 2, 0)
	wantErr(t, "the other side", b.CompleteTarget(&cq.Entry{Flags: cq.FlagSend}), cq.ErrInvalid)
}

// TestUnknownSource: data from nobody known is an error entry where a completion would be, and
// counts as one. The address vector stays open.
func TestUnknownSource(t *testing.T) {
	v := shmtest.Got(cq.CreateAddresses(cq.Unnamed("bound"), cq.AddressOptions{})).Or(t)
	q, w := pair(t, cq.Options{Size: 8})
	count := tally(t, cq.CounterOptions{})
	o := feed.Options{Queue: w, Addresses: v, Flags: cq.FlagRecv | cq.FlagSelectiveCompletion,
		Counters: map[*cq.Counter]cq.Flags{count: cq.FlagRecv}}
	b := shmtest.Got(feed.Bind(o)).Or(t)
	wantErr(t, "close", v.Close(), cq.ErrBusy, syscall.EBUSY)
	wantErr(t, "detach", v.Detach(), cq.ErrBusy)
	e := cq.Entry{Context: 1, Flags: cq.FlagRecv | cq.FlagTagged | cq.FlagRemoteCQData, Len: 2, Buf: 3,
		Data: 4, Tag: 5, Src: cq.From(6)}
	from := []byte("an address")
	for _, op := range []cq.Flags{cq.FlagCompletion, 0} {
		must(t, b.Begin(op))
		must(t, b.CompleteUnknown(&e, op, from))
	}
	wantErr(t, "read", first(cq.Read(q, make([]cq.Context, 4))), cq.ErrAvail)
	got := cq.ErrorEntry{ErrData: make([]byte, cq.ErrDataMaxBytes)}
	must(t, q.ReadErr(&got))
	want := cq.ErrorEntry{Context: 1, Flags: e.Flags, Len: 2, Buf: 3, Data: 4, Tag: 5,
		Err: cq.Errno(syscall.EADDRNOTAVAIL), ErrData: from, ErrDataBytes: len(from)}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	if e.Meta = cq.MetaNoContext; feed.UnknownSource(&e, nil).Flags != e.Flags|cq.FlagNoContext {
		t.Error("the mark of an entry without a context is lost")
	}
	if got := takeAll(t, q); got != nil || w.Credits().Len() != 0 {
		t.Error(got, w.Credits().Len())
	}
	wantCounter(t, count, 2, 0) // the data has arrived
	must(t, b.Close())
	must(t, v.Close())
	_, err := feed.Bind(o)
	wantErr(t, "a closed vector", err, cq.ErrClosed)
	must(t, w.Close()) // nothing holds what was not bound
}

// TestCountersOnly: an endpoint may have counters and no queue. While it does they stay open.
func TestCountersOnly(t *testing.T) {
	count := tally(t, cq.CounterOptions{})
	size, err := cq.CreateCounter(cq.Unnamed("bytes"), cq.CounterOptions{Events: cq.BytesCounter})
	must(t, err)
	kinds := cq.FlagSend | cq.FlagWrite
	o := feed.Options{Flags: cq.FlagTransmit,
		Counters: map[*cq.Counter]cq.Flags{count: kinds, size: kinds}}
	b := shmtest.Got(feed.Bind(o)).Or(t)
	wantErr(t, "close", size.Close(), cq.ErrBusy, syscall.EBUSY)
	must(t, b.Begin(cq.FlagCompletion))
	must(t, b.Complete(&cq.Entry{Flags: cq.FlagSend, Len: 100}, cq.FlagCompletion))
	must(t, b.Complete(&cq.Entry{Flags: cq.FlagRead, Len: 1000}, cq.FlagCompletion))
	must(t, b.Fail(&cq.ErrorEntry{Flags: cq.FlagWrite, Len: 10}, 0))
	b.Drop(cq.FlagCompletion)
	wantCounter(t, count, 1, 1)
	wantCounter(t, size, 100, 1)
	must(t, b.Close())
	must(t, size.Close())
	_, err = feed.Bind(o)
	wantErr(t, "a closed counter", err, cq.ErrClosed)
}

// TestBindingAllocates: reporting costs no memory.
func TestBindingAllocates(t *testing.T) {
	q, w := pair(t, cq.Options{Size: 8})
	count := tally(t, cq.CounterOptions{})
	b := shmtest.Have(feed.Bind(feed.Options{Queue: w, Flags: cq.FlagTransmit,
		Counters: map[*cq.Counter]cq.Flags{count: cq.FlagSend}})).In(t)
	e, dst := cq.Entry{Flags: cq.FlagSend}, make([]cq.Msg, 1)
	if n := testing.AllocsPerRun(100, func() {
		err := errors.Join(b.Begin(0), b.Complete(&e, 0))
		if n, e := cq.Read(q, dst); n != 1 || e != nil || err != nil {
			t.Fatal(n, e, err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
