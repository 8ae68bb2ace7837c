package cq_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/ctl"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

const fuzzSize = 8

// fuzzLane is what an honest writer would have left after n entries of a kind.
func fuzzLane(n, kind uint64) []byte {
	mem := make([]byte, 512+fuzzSize*cq.SlotBytes)
	binary.LittleEndian.PutUint64(mem, n)
	for i := range min(n, fuzzSize) {
		binary.LittleEndian.PutUint64(mem[512+i*cq.SlotBytes+56:], kind|i<<32)
	}
	return mem
}

// FuzzLane has arbitrary bytes as a lane's words, slots and error details, and as the reader's row
// of it. Whatever they are, the reader ends, hands out no more than the lane holds, and the other
// lane's entries come in order.
func FuzzLane(f *testing.F) {
	row := make([]byte, cq.RowBytes)
	row[0] = 1
	f.Add(fuzzLane(3, 1), row, []byte{0, 1, 2, 3, 4, 5, 6, 7})
	f.Add(fuzzLane(8, 2), row, []byte{4, 0, 4, 0, 2})
	f.Add(fuzzLane(9, 1), row, []byte{1, 3})
	f.Add(fuzzLane(^uint64(0), 0), row, []byte{0, 0, 0})
	f.Add(fuzzLane(5, 3), append([]byte{8}, row[1:]...), []byte{5, 5})
	f.Add([]byte{}, []byte{0xff}, []byte{6})
	f.Fuzz(func(t *testing.T, lane, row, steps []byte) {
		d := openDir(t)
		o := cq.Options{Size: fuzzSize, MaxLanes: 2, Spin: -1, Wait: cq.WaitFD}
		if len(steps) > 0 && steps[0]&0x80 != 0 {
			o.Overrun = cq.OverrunQueue
		}
		name := "fuzz"
		q := shmtest.Got(cq.Create(cq.Named(d, name), o)).Or(t)
		spec := cq.LaneSpec(1, fuzzSize, cq.QueueUUID(q))
		must(t, q.Detach())
		plantLane(t, d, name, spec, lane, row)
		w := shmtest.Got(cq.Attach(t.Context(), cq.Named(d, name), cq.WriterOptions{})).Or(t)
		q = shmtest.Got(cq.Open(cq.Named(d, name), cq.Options{Existing: true, Spin: -1})).Or(t)
		if w.Lane() == 2 {
			post(t, w, 1000, 1004)
		} else { // nobody owns the planted lane: the writer took it over
			_ = w.Post(&cq.Entry{Context: 1})
			_ = w.Credits().Add(1)
			_ = w.Credits().PostError(&cq.ErrorEntry{})
		}
		fuzzSteps(t, steps, w.Lane() == 2, func(step byte) ([]uint64, error) {
			es, err := fuzzStep(q, step)
			return contexts(es), err
		})
		must(t, w.Close())
		closeQueue(t, q)
		must(t, os.RemoveAll(d.Path()+"/"+name))
	})
}

// fuzzSteps makes one call of the reader's for each step, and then reads what is left. Beside a
// planted lane, of which there is no more than it can hold, four entries of an honest one come.
func fuzzSteps(t *testing.T, steps []byte, beside bool, call func(byte) ([]uint64, error)) {
	t.Helper()
	good, others := uint64(0), 0
	steps = steps[:min(len(steps), 64)]
	for i := range len(steps) + 64 {
		step := byte(0)
		if i < len(steps) {
			step = steps[i]
		}
		got, err := call(step)
		for _, c := range got {
			if beside && c == 1000+good {
				good++
			} else {
				others++
			}
		}
		if i >= len(steps) && err == cq.ErrWouldBlock {
			break
		}
	}
	if beside && good != 4 || others > 2*fuzzSize {
		t.Errorf("%d good entries, %d others", good, others)
	}
}

// plantLane makes the lane object and scribbles on the reader's row of it.
func plantLane(t *testing.T, d *shm.Dir, name string, spec shm.Spec, lane, row []byte) {
	t.Helper()
	sub := shmtest.Have(d.Sub(name, false)).In(t)
	obj := shmtest.Got(sub.Create("lane-0001", spec, func(o *shm.Object) error {
		for _, kind := range []shm.SectionKind{cq.SectLane, cq.SectSlots, cq.SectErrors} {
			mem, _, err := o.Section(kind, 1)
			if err != nil {
				return err
			}
			n := copy(mem[:min(512, len(mem))], lane)
			lane = lane[n:]
		}
		return nil
	})).Or(t)
	must(t, obj.Close())
	reader := shmtest.Got(sub.Open(cq.ReaderFile, shm.ReadWrite)).Or(t)
	mem, _, err := reader.Section(cq.SectRows, 0)
	must(t, err)
	copy(mem[cq.RowBytes:2*cq.RowBytes], row)
	must(t, reader.Close())
}

// fuzzStep makes one call of the reader's.
func fuzzStep(q *cq.Queue, step byte) ([]cq.Context, error) {
	dst := make([]cq.Context, 1+step>>3&15)
	var n int
	var err error
	switch step & 7 {
	case 0, 7:
		n, err = cq.Read(q, dst)
	case 1:
		n, err = sread(q, dst, 0)
	case 2:
		n, err = sread(q, dst, 50*time.Microsecond, 3)
	case 3:
		var es []cq.Entry
		es, err = q.Peek(len(dst))
		for i := range es {
			dst[i].Context = es[i].Context
		}
		if n = len(es); q.Release(n) != nil {
			panic("release of what was peeked")
		}
	case 4:
		e := cq.ErrorEntry{ErrData: make([]byte, 100)}
		if err = q.ReadErr(&e); len(e.ErrData) > cq.ErrDataMaxBytes {
			if err == nil {
				panic("more detail than there can be")
			}
		}
	case 5:
		err = q.TryWait()
	case 6:
		cq.MarkLane(q, 1)
	}
	if err == cq.ErrAvail && q.ReadErr(&cq.ErrorEntry{}) != nil {
		panic("an error that cannot be taken")
	}
	var e *cq.LaneError
	if errors.As(err, &e) && !errors.Is(err, syscall.EBADMSG) {
		panic(err)
	}
	return dst[:n], err
}

// planted is a queue with a lane that a test writes behind the library's back, entry by entry. It
// is used for many inputs: nothing that they say may break it.
type planted struct {
	words, slots, details []byte
	stride                int // of a detail record
	next                  uint64
	name                  string
	dir                   *shm.Dir
	obj                   *shm.Object
	end                   func() error // of the queue and its writer
}

func plant(t testing.TB, d *shm.Dir, name string, detailBytes int, end func() error) *planted {
	t.Helper()
	p := &planted{name: name, dir: d, stride: detailBytes, end: end}
	p.obj = shmtest.Got(shmtest.Have(d.Sub(name, false)).In(t).Open("lane-0001", shm.ReadWrite)).Or(t)
	s := scribbler{p.obj}
	p.words, p.slots = s.section(t, cq.SectLane, 1), s.section(t, cq.SectSlots, 1)
	p.details, p.next = s.section(t, cq.SectErrors, 1), peek64(p.words, 0)
	return p
}

func (p *planted) close() error { return errors.Join(p.obj.Close(), p.end()) }

// publish makes an entry of these bytes, which says that it is of a kind.
func (p *planted) publish(slot, detail []byte, kind byte) (wrote, record []byte) {
	at := int(p.next % fuzzSize)
	wrote = p.slots[at*cq.SlotBytes : (at+1)*cq.SlotBytes]
	record = p.details[at*p.stride : (at+1)*p.stride]
	clear(wrote)
	clear(record)
	copy(wrote, slot)
	copy(record, detail)
	wrote[56] = kind
	binary.LittleEndian.PutUint32(wrote[60:], uint32(p.next)) // or inspectors take it for an old one
	p.next++
	poke(p.words, 0, p.next)
	return wrote, record
}

// seen returns the entry as an outsider sees it, which consumes nothing.
func (p *planted) seen(t *testing.T) ctl.Entry {
	t.Helper()
	m := ctl.NewMonitor(p.dir)
	defer m.Close()
	tail := shmtest.Got(m.Entries(p.name, 1)).Or(t)
	for _, l := range tail.Lanes {
		if l.Row == 1 && len(l.Entries) == 1 {
			return l.Entries[0]
		}
	}
	return ctl.Entry{}
}

// wantFailure compares what an outsider sees of a failed operation.
func wantFailure(t *testing.T, f *ctl.Failure, err cq.Errno, provErrno int32, data []byte) {
	t.Helper()
	if f == nil || f.Errno != int32(err) || f.ProvErrno != provErrno ||
		f.Data != hex.EncodeToString(data) {
		t.Errorf("an outsider sees %+v", f)
	}
}

// word is a word of an entry or a record, as the layout says and not as the library reads it.
func word(b []byte, i int) uint64 { return binary.LittleEndian.Uint64(b[8*i:]) }

func seedSlot(words ...uint64) []byte {
	b := make([]byte, cq.SlotBytes)
	for i, w := range words {
		poke(b, 8*i, w)
	}
	return b
}

// FuzzErrorArray has arbitrary bytes as an error entry and its record in the array beside the
// slots. What is read is what stands there, bounded by the record and by the reader's room, and an
// outsider sees the same.
func FuzzErrorArray(f *testing.F) {
	record := func(n uint64, err int32) []byte {
		b := bytes.Repeat([]byte{0xa5}, 64)
		poke(b, 16, n)
		binary.LittleEndian.PutUint32(b[8:], uint32(err))
		return b
	}
	for i, n := range []uint64{0, 1, 39, 40, 41, 1 << 40, 1 << 63, ^uint64(0)} {
		f.Add(seedSlot(1, 2, 3, 4, 5, 6, 7, 1<<9), record(n, int32(i)-1), uint8(8*i), uint8(i))
	}
	f.Add([]byte{}, []byte{}, uint8(0), uint8(1))
	f.Add(bytes.Repeat([]byte{0xff}, 64), bytes.Repeat([]byte{0xff}, 64), uint8(255), uint8(3))
	d, q := create(f, cq.Options{Size: fuzzSize, Spin: -1})
	p := plant(f, d, q.Name(), 64, attach(f, d, q.Name()).Close)
	f.Cleanup(func() { must(f, p.close()) })
	f.Fuzz(func(t *testing.T, slot, detail []byte, room, how uint8) {
		b, r := p.publish(slot, detail, 2)
		cq.MarkLane(q, 1)
		var outside ctl.Entry
		if how&1 != 0 {
			outside = p.seen(t)
		}
		if how&2 != 0 {
			if n, err := cq.Read(q, make([]cq.Tagged, 3)); n != 0 || err != cq.ErrAvail {
				t.Fatalf("read: %d, %v", n, err)
			}
		}
		if how&4 != 0 {
			if es, err := q.Peek(3); len(es) != 0 || err != cq.ErrAvail && err != cq.ErrWouldBlock {
				t.Fatalf("peek: %d, %v", len(es), err)
			}
		}
		own := make([]byte, int(room)+8)[:0:room]
		e := cq.ErrorEntry{ErrData: own}
		must(t, q.ReadErr(&e))
		n := min(word(r, 2), cq.ErrDataMaxBytes)
		data := r[24 : 24+min(n, uint64(room))]
		flags := cq.Flags(word(b, 1))
		if b[57]&2 != 0 { // the mark that no operation stands behind it
			flags |= cq.FlagNoContext
		}
		numbers := word(r, 1)
		want := cq.ErrorEntry{Context: word(b, 0), Flags: flags, Len: word(b, 2),
			Buf: shm.Ref(word(b, 3)), Data: word(b, 4), Tag: word(b, 5),
			Src:          cq.Source{AddrPlus1: word(b, 6)},
			OverrunBytes: word(r, 0), Err: cq.Errno(int32(numbers)), ProvErrno: int32(numbers >> 32),
			ErrDataBytes: int(n)}
		wantErrorEntry(t, "read", e, want, data)
		if len(e.ErrData) > 0 && &e.ErrData[0] != &own[:1][0] {
			t.Error("the detail is not in the reader's memory")
		}
		if how&1 != 0 {
			wantFailure(t, outside.Failure, want.Err, want.ProvErrno, r[24:24+n])
			wantOutside(t, outside, want)
		}
		_, _, _ = e.Error(), errors.Is(&e, cq.ETrunc), cq.StrError(e.ProvErrno, e.ErrData)
		if n, err := cq.Read(q, make([]cq.Entry, 1)); n != 0 || err != cq.ErrWouldBlock {
			t.Fatalf("afterwards: %d, %v", n, err)
		}
	})
}

func wantErrorEntry(t *testing.T, what string, got, want cq.ErrorEntry, data []byte) {
	t.Helper()
	if !bytes.Equal(got.ErrData, data) {
		t.Errorf("%s: detail %x, want %x", what, got.ErrData, data)
	}
	if got.ErrData = nil; got.Error() != want.Error() || got.Context != want.Context ||
		got.Flags != want.Flags || got.Len != want.Len || got.Buf != want.Buf ||
		got.Data != want.Data || got.Tag != want.Tag || got.Src != want.Src ||
		got.OverrunBytes != want.OverrunBytes || got.Err != want.Err ||
		got.ProvErrno != want.ProvErrno || got.ErrDataBytes != want.ErrDataBytes || got.Redelivered {
		t.Errorf("%s: %+v, want %+v", what, got, want)
	}
}

// wantOutside compares what an outsider sees of an entry.
func wantOutside(t *testing.T, s ctl.Entry, want cq.ErrorEntry) {
	t.Helper()
	if s.Context != nil && *s.Context != want.Context ||
		s.Context == nil && want.Flags&cq.FlagNoContext == 0 ||
		cq.Flags(s.FlagBits)|want.Flags&cq.FlagNoContext != want.Flags || s.Len != want.Len ||
		(s.Buf == nil) != (want.Buf == 0) ||
		s.Buf != nil && shm.MakeRef(s.Buf.Region, s.Buf.Offset) != want.Buf ||
		s.Data != want.Data || s.Tag != want.Tag || (s.Src == nil) != (want.Src == cq.Source{}) ||
		s.Src != nil && cq.From(cq.Addr(*s.Src)) != want.Src ||
		s.Failure.OverrunBytes != want.OverrunBytes {
		t.Errorf("an outsider sees %+v, want %+v", s, want)
	}
}

// plantEvents makes an event queue with a planted lane; the records are of 128 bytes.
func plantEvents(t testing.TB, d *shm.Dir) (*cq.EventQueue, *planted) {
	t.Helper()
	const name = "planted"
	q := shmtest.Got(cq.CreateEvents(cq.Named(d, name), cq.EventOptions{Size: fuzzSize, Spin: -1,
		DataMaxBytes: 104})).Or(t)
	w := shmtest.Got(cq.AttachEvents(t.Context(), cq.Named(d, name), cq.WriterOptions{})).Or(t)
	return q, plant(t, d, name, 128, func() error { return errors.Join(w.Close(), q.Close()) })
}

// FuzzEventEntry has arbitrary bytes as an event or error event with its record. One that claims
// more payload than the record holds costs its writer the lane; every other one is read as it
// stands there, once there is room for it, and never more of it.
func FuzzEventEntry(f *testing.F) {
	for i, n := range []uint64{0, 1, 16, 104, 105, 128, 1 << 40, 1 << 63, ^uint64(0)} {
		record := bytes.Repeat([]byte{0x5a}, 128)
		poke(record, 16, n)
		f.Add(seedSlot(1, 2<<32|3, n, 4, 5, 6, 7), record, uint8(16*i), uint8(i))
		f.Add(seedSlot(1, 1<<31, n), record, uint8(0), uint8(i|1))
	}
	f.Add([]byte{}, []byte{}, uint8(0), uint8(0))
	cm := shmtest.Got((&cq.CMEntry{Info: []byte("info"), Data: []byte("data")}).AppendTo(nil)).Or(f)
	f.Add(seedSlot(9, 1, uint64(len(cm))), append(make([]byte, 24), cm...), uint8(104), uint8(0))
	d := openDir(f)
	q, p := plantEvents(f, d)
	f.Cleanup(func() { must(f, p.close()) })
	f.Fuzz(func(t *testing.T, slot, detail []byte, room, how uint8) {
		b, r := p.publish(slot, detail, 1+how&1)
		cq.MarkEventLane(q, 1)
		fid := cq.FID{Kind: cq.FIDKind(word(b, 1) >> 32), ID: word(b, 5), Generation: word(b, 6)}
		var s ctl.Entry
		if how&2 != 0 {
			s = p.seen(t)
		}
		if how&1 != 0 {
			want := cq.EventError{FID: fid, Context: word(b, 0), Data: word(b, 4),
				Err: cq.Errno(int32(word(r, 1))), ProvErrno: int32(word(r, 1) >> 32),
				ErrDataBytes: int(min(word(r, 2), 104))}
			wantEventError(t, q, &want, r[24:], int(room), how)
			if how&2 != 0 {
				wantFailure(t, s.Failure, want.Err, want.ProvErrno, r[24:24+want.ErrDataBytes])
			}
			return
		}
		n := word(b, 2)
		want := cq.Event{Event: cq.EventKind(uint32(word(b, 1))), FID: fid, Context: word(b, 0),
			Data: word(b, 4)}
		payload := hex.EncodeToString(r[24 : 24+min(n, 104)])
		if how&2 != 0 && (s.Event != nil && s.Event.Payload == payload) != (n <= 104) {
			t.Errorf("an outsider sees %+v", s)
		}
		if n > 104 {
			_, err := q.Read(&cq.Event{Payload: make([]byte, 0, 1024)}, 0)
			wantErr(t, "too much payload", err, cq.ErrCorrupt)
			must(t, p.close())
			q, p = plantEvents(t, d)
			return
		}
		wantEvent(t, q, &want, r[24:24+n], int(room), how)
	})
}

// wantEvent reads an event, first with the room that the fuzzer gives.
func wantEvent(t *testing.T, q *cq.EventQueue, want *cq.Event, payload []byte, room int,
	how uint8) {
	t.Helper()
	got := cq.Event{Payload: make([]byte, 0, room)}
	if how&4 != 0 {
		_, _ = q.Read(&got, cq.FlagPeek)
	}
	n, err := q.Read(&got, 0)
	var too *cq.Error
	if errors.Is(err, cq.ETooSmall) != (len(payload) > room) ||
		errors.As(err, &too) && too.Want != len(payload) {
		t.Fatalf("%d bytes of payload and room for %d: %v", len(payload), room, err)
	}
	if too != nil {
		got.Payload = make([]byte, 0, len(payload))
		n, err = q.Read(&got, 0)
	}
	must(t, err)
	if n != cq.EventHeaderBytes+len(payload) || !bytes.Equal(got.Payload, payload) ||
		got.Event != want.Event || got.FID != want.FID || got.Context != want.Context ||
		got.Data != want.Data || got.Redelivered {
		t.Errorf("%+v, want %+v with %x", got, want, payload)
	}
	if c, err := cq.ParseCMEntry(got.Payload); err == nil {
		again, err := c.AppendTo(nil)
		if err != nil || !bytes.Equal(again, got.Payload) {
			t.Errorf("%x is %+v, which is %x, %v", got.Payload, c, again, err)
		}
	}
	_, _ = got.Event.String(), got.FID.String()
	noMoreEvents(t, q)
}

// wantEventError reads an error event.
func wantEventError(t *testing.T, q *cq.EventQueue, want *cq.EventError, data []byte, room int,
	how uint8) {
	t.Helper()
	if n, err := q.Read(&cq.Event{}, 0); n != 0 || err != cq.ErrAvail {
		t.Fatalf("read: %d, %v", n, err)
	}
	got := cq.EventError{ErrData: make([]byte, 0, room)}
	if how&4 != 0 {
		shmtest.Got(q.ReadErr(&got, cq.FlagPeek)).Or(t)
	}
	shmtest.Got(q.ReadErr(&got, 0)).Or(t)
	if data = data[:min(want.ErrDataBytes, room)]; !bytes.Equal(got.ErrData, data) {
		t.Errorf("detail %x, want %x", got.ErrData, data)
	}
	if got.Error() != want.Error() || got.FID != want.FID || got.Data != want.Data ||
		got.ErrDataBytes != want.ErrDataBytes || got.ProvErrno != want.ProvErrno {
		t.Errorf("%+v, want %+v", got, want)
	}
	noMoreEvents(t, q)
}

func noMoreEvents(t *testing.T, q *cq.EventQueue) {
	t.Helper()
	if n, err := q.Read(&cq.Event{}, 0); n != 0 || err != cq.ErrWouldBlock {
		t.Fatalf("afterwards: %d, %v", n, err)
	}
}
