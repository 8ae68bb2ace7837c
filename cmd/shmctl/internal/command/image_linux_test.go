package command

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/ctl"
	"github.com/shmring/shmring/fabric"
	"github.com/shmring/shmring/internal/capture"
	"github.com/shmring/shmring/internal/shmtest"
	xstatus "github.com/shmring/shmring/internal/status"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp"
)

const imagePath = "../../../../testdata/golden/kinds-v0.1.tar.gz"

var newImage = flag.Bool("image", false,
	"make the image of all kinds anew, and give up what the former one could show")

func init() { roles["image"] = makeKinds }

var need = shmtest.Need

// makeKinds makes an object of each kind, and lives until it is killed.
func makeKinds() {
	d := shmtest.Needs(shm.OpenDir(""))
	q := shmtest.Needs(cq.Create(cq.Named(d, "orders"), cq.Options{Format: cq.FormatTagged, Size: 8,
		MaxLanes: 2,
		Lifetime: cq.Persistent, Wait: cq.WaitFD}))
	set := shmtest.Needs(cq.NewWaitSet(d, cq.WaitSetOptions{}))
	need(set.Add(q))
	w := shmtest.Needs(cq.Attach(context.Background(), cq.Named(d, "orders"), cq.WriterOptions{}))
	for i := range uint64(3) {
		need(w.Post(&cq.Entry{Context: 70 + i, Flags: cq.FlagRecv | cq.FlagTagged, Len: 100 + i,
			Buf: shm.MakeRef(1, 4096*i), Data: 200 + i, Tag: 300 + i, Src: cq.From(5),
			Meta: cq.MetaSolicited}))
	}
	need(w.PostError(&cq.ErrorEntry{Context: 73, Err: 5, ProvErrno: 17, OverrunBytes: 9,
		ErrData: []byte("detail")}))
	need(w.Post(&cq.Entry{Context: 74}))
	shmtest.Needs(cq.Read(q, make([]cq.Tagged, 1)))
	shmtest.Needs(q.Peek(1))

	e := shmtest.Needs(cq.CreateEvents(cq.Named(d, "news"), cq.EventOptions{Size: 4, Write: true,
		Lifetime: cq.Persistent}))
	fid := cq.FID{Kind: cq.FIDMemory, ID: 6, Generation: 7}
	shmtest.Needs(e.Write(&cq.Event{Event: cq.EventUser, FID: fid, Context: 80, Data: 81,
		Payload: []byte("payload")}))
	shmtest.Needs(e.WriteErr(&cq.EventError{FID: fid, Context: 82, Data: 83, Err: 5, ProvErrno: 18,
		ErrData: []byte("cause")}))
	c := shmtest.Needs(cq.CreateCounter(cq.Named(d, "sent"), cq.CounterOptions{Events: cq.BytesCounter,
		Lifetime: cq.Persistent}))
	need(errors.Join(c.Set(40), c.Add(1), c.AddErr(2)))
	v := shmtest.Needs(cq.CreateAddresses(cq.Named(d, "peers"),
		cq.AddressOptions{Count: 8, Format: cq.AddrOpaque,
			UserID: true, Lifetime: cq.Persistent}))
	_, err := v.Insert([][]byte{[]byte("one"), []byte("two"), []byte("three")}, cq.InsertOptions{})
	need(err)
	need(errors.Join(v.Remove(1), v.SetUserID(2, 90)))
	makeDeviceKinds(d)
	makeFabricKinds(d)
	fmt.Println("made")
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// makeDeviceKinds makes those of the device path. The frames have no name: their bytes get one.
func makeDeviceKinds(d *shm.Dir) {
	o := shmtest.Needs(xstatus.Create(d, xstatus.Info{Interface: "eth7", Index: 7, NetNS: 8, Queue: 3,
		NeedWakeup: true, Geometry: xdp.Geometry{Frames: 16, ChunkBytes: 2048, HeadroomBytes: 64},
		UMEM: shm.UUID{9}, Rings: xstatus.RingSizes{Rx: 16, Tx: 32, Fill: 64, Comp: 128},
		Local: netip.MustParseAddrPort("192.0.2.1:9"), Receive: "orders", ReceiveID: shm.UUID{10}}))
	var counts xstatus.Counters
	counts.UpdatedNs, counts.Kernel.RxDropped, counts.Rings.Posted = 21, 22, 23
	counts.Syscalls.Receive, counts.Traffic.Accepted, counts.Traffic.Starved = 24, 25, 26
	o.Update(&counts)
	s := shmtest.Needs(capture.Start(d, o.Name(), capture.Options{SnapBytes: 64, Slots: 16}))
	tap := shmtest.Needs(capture.Attach(d, o.Wish(), 3))
	tap.Packet(true, []byte("a packet"), false)
	tap.Flush()
	if !s.Attached() {
		need(errors.New("the capture is not attached"))
	}
	u := shmtest.Needs(xdp.NewUMEM(xdp.UMEMOptions{Frames: 16, Generation: 11}))
	frames := shmtest.Needs(os.ReadFile(fmt.Sprintf("/proc/self/fd/%d", u.Region().Object().FD())))
	need(os.WriteFile(filepath.Join(d.Path(), "frames"), frames, 0o600))
	shmtest.Needs(d.Create("region", shm.Spec{Kind: shm.KindRegion, Generation: 12,
		Sections: []shm.Section{{Kind: 1, Length: 4096}}}, func(o *shm.Object) error {
		mem, _, err := o.Section(1, 0)
		copy(mem, "bytes of a region")
		return err
	}))
}

// makeFabricKinds makes two endpoints, one of which has sent to the other.
func makeFabricKinds(d *shm.Dir) {
	q := shmtest.Needs(cq.Create(cq.Unnamed("ends"), cq.Options{Size: 64}))
	w := shmtest.Needs(q.Writer())
	o := fabric.Options{Transmit: w, Receive: w, Peers: 2}
	shmtest.Needs(fabric.Open(d, "answers", o))
	e := shmtest.Needs(fabric.Open(d, "asks", o))
	to := shmtest.Needs(e.Resolve("answers"))
	need(e.Send([]byte("a message"), to, 60))
	shmtest.Needs(e.Join("group", fabric.GroupOptions{Members: 4, Misses: true}))
}

// writeImage has a child make the kinds, kills it, and packs what it leaves.
func writeImage(t *testing.T) {
	t.Helper()
	d := newDir(t)
	c := shmtest.Start(t, shmtest.Child(t, "image"))
	_ = c.Line(t)
	c.Kill()
	var image bytes.Buffer
	zip := shmtest.Got(gzip.NewWriterLevel(&image, gzip.BestCompression)).Or(t)
	w := tar.NewWriter(zip)
	must(t, filepath.WalkDir(d.Path(), func(path string, e os.DirEntry, err error) error {
		if err != nil || path == d.Path() {
			return err
		}
		name, _ := filepath.Rel(d.Path(), path)
		if e.IsDir() {
			return w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: 0o700})
		}
		if !e.Type().IsRegular() {
			return w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeFifo, Mode: 0o600})
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		h := &tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o600, Size: int64(len(b))}
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		_, err = w.Write(b)
		return err
	}))
	must(t, errors.Join(w.Close(), zip.Close()))
	must(t, os.WriteFile(imagePath, image.Bytes(), 0o644))
}

// unpackImage puts the objects of the image into a directory.
func unpackImage(t *testing.T, path string) {
	t.Helper()
	f := shmtest.Have(os.Open(imagePath)).In(t)
	zip := shmtest.Got(gzip.NewReader(f)).Or(t)
	for r := tar.NewReader(zip); ; {
		h, err := r.Next()
		if err == io.EOF {
			return
		}
		must(t, err)
		to := filepath.Join(path, filepath.FromSlash(h.Name))
		switch h.Typeflag {
		case tar.TypeDir:
			must(t, os.Mkdir(to, 0o700))
		case tar.TypeFifo:
			must(t, unix.Mkfifo(to, 0o600))
		default:
			b := shmtest.Got(io.ReadAll(r)).Or(t)
			must(t, os.WriteFile(to, b, 0o600))
		}
	}
}

// lasting is JSON without what depends on the machine and the time of the look.
func lasting(t *testing.T, v any) (lines []string) {
	t.Helper()
	b := shmtest.Got(json.Marshal(v)).Or(t)
	var tree any
	must(t, json.Unmarshal(b, &tree))
	var strip func(v any)
	strip = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			for _, key := range []string{"path", "Path", "owner", "uid", "created_at", "age_ns",
				"command", "alive", "stopped"} {
				delete(v, key)
			}
			for _, inner := range v {
				strip(inner)
			}
		case []any:
			for _, inner := range v {
				strip(inner)
			}
		}
	}
	strip(tree)
	b = shmtest.Got(json.MarshalIndent(tree, "", " ")).Or(t)
	return strings.Split(string(b), "\n")
}

// TestImage: objects of every kind that a killed process left, of this layout, are what they were:
// whole, the same to who looks, and good to go on with. A kind whose layout changes is seen here.
func TestImage(t *testing.T) {
	if *newImage {
		writeImage(t)
	}
	d := newDir(t)
	unpackImage(t, d.Path())
	kinds := imageKinds(t, d)
	for kind := shm.KindQueue; !strings.HasPrefix(kind.String(), "kind "); kind++ {
		if kinds[kind.String()] == "" {
			t.Errorf("no %v in the image", kind)
		}
	}
	report := shmtest.Got(ctl.Check(ctl.CheckOptions{More: checkMore}, d.Path())).Or(t)
	if report.Objects < len(kinds) || len(report.Findings) > 0 || len(report.Undecided) > 0 {
		t.Errorf("check: %+v", report)
	}
	m := ctl.NewMonitor(d)
	defer m.Close()
	for _, kind := range []string{"queue", "events"} {
		t.Run(kind, func(t *testing.T) {
			q := shmtest.Got(m.Show(kinds[kind])).Or(t)
			tail := shmtest.Got(m.Entries(kinds[kind], 8)).Or(t)
			golden(t, "image-"+kind, lasting(t, []any{q, tail}))
		})
	}
	for _, kind := range []string{"counter", "addresses", "bell", "region", "umem", "capture",
		"fabric", "outbox", "group"} {
		t.Run(kind, func(t *testing.T) {
			o := shmtest.Got(ctl.ShowObject(d, kinds[kind])).Or(t)
			golden(t, "image-"+kind, lasting(t, o))
			lines := strings.Join(showAll(found{objects: []ctl.Object{o}}, &output{}, page{}), "\n")
			if strings.Contains(lines, "{") || strings.Contains(lines, "group: ") {
				t.Errorf("show does not take it apart:\n%s", lines)
			}
		})
	}
	t.Run("endpoint", func(t *testing.T) {
		s := shmtest.Got(xstatus.Look(d, kinds["endpoint"])).Or(t)
		golden(t, "image-endpoint", lasting(t, s))
	})
	goOn(t, d, kinds)
}

// imageKinds returns the names of the objects by their kinds.
func imageKinds(t *testing.T, d *shm.Dir) map[string]string {
	t.Helper()
	kinds := map[string]string{}
	m := ctl.NewMonitor(d)
	defer m.Close()
	queues := shmtest.Got(m.List()).Or(t)
	for _, q := range queues {
		if q.Error != nil {
			t.Fatalf("%s: %+v", q.Name, q.Error)
		}
		kinds[*q.Kind] = q.Name
		if len(q.Lanes) > 1 {
			kinds["lane"] = q.Name
		}
	}
	objects := shmtest.Got(ctl.Objects(d)).Or(t)
	for _, o := range objects {
		if o.Error != nil {
			t.Fatalf("%s: %+v", o.Name, o.Error)
		}
		kinds[*o.Kind] = o.Name
	}
	return kinds
}

// goOnQueue has a writer and a reader take over the queue.
func goOnQueue(t *testing.T, d *shm.Dir) {
	t.Run("lane goes on", func(t *testing.T) {
		w := shmtest.Got(cq.Attach(t.Context(), cq.Named(d, "orders"), cq.WriterOptions{})).Or(t)
		must(t, w.Post(&cq.Entry{Context: 75}))
		must(t, w.Close())
	})
	t.Run("queue goes on", func(t *testing.T) {
		q, err := cq.Open(cq.Named(d, "orders"), cq.Options{Existing: true, Format: cq.FormatTagged,
			Size: 8, MaxLanes: 2})
		must(t, err)
		defer func() { must(t, q.Close()) }()
		buf := make([]cq.Tagged, 8)
		n := shmtest.Got(cq.Read(q, buf)).Or(t)
		const flags = cq.FlagRecv | cq.FlagTagged
		want := []cq.Tagged{
			{Context: 71, Flags: flags | cq.FlagRedelivered, Len: 101, Buf: shm.MakeRef(1, 4096),
				Data: 201, Tag: 301},
			{Context: 72, Flags: flags, Len: 102, Buf: shm.MakeRef(1, 8192), Data: 202, Tag: 302}}
		for n < 2 {
			more := shmtest.Got(cq.Read(q, buf[n:])).Or(t)
			n += more
		}
		if !slices.Equal(buf[:n], want) {
			t.Errorf("got %+v, want %+v", buf[:n], want)
		}
		var e cq.ErrorEntry
		e.ErrData = make([]byte, 0, 16)
		err = q.ReadErr(&e)
		if err != nil || e.Context != 73 || e.Err != 5 || e.ProvErrno != 17 ||
			e.OverrunBytes != 9 || string(e.ErrData) != "detail" {
			t.Errorf("%v: %+v", err, e)
		}
		n, err = cq.Read(q, buf)
		if n != 2 || err != nil || buf[0].Context != 74 || buf[1].Context != 75 {
			t.Errorf("%d, %v: %+v", n, err, buf[:n])
		}
	})
}

func goOnEvents(t *testing.T, d *shm.Dir) {
	t.Run("events go on", func(t *testing.T) {
		q := shmtest.Got(cq.OpenEvents(cq.Named(d, "news"), cq.EventOptions{Existing: true})).Or(t)
		defer func() { must(t, q.Close()) }()
		fid := cq.FID{Kind: cq.FIDMemory, ID: 6, Generation: 7}
		ev := cq.Event{Payload: make([]byte, 0, 16)}
		if _, err := q.Read(&ev, 0); err != nil || ev.Event != cq.EventUser || ev.FID != fid ||
			ev.Context != 80 || ev.Data != 81 || string(ev.Payload) != "payload" {
			t.Errorf("%+v, %v", ev, err)
		}
		e := cq.EventError{ErrData: make([]byte, 0, 16)}
		if _, err := q.ReadErr(&e, 0); err != nil || e.FID != fid || e.Context != 82 || e.Data != 83 ||
			e.Err != 5 || e.ProvErrno != 18 || string(e.ErrData) != "cause" {
			t.Errorf("%+v, %v", e, err)
		}
	})
}

// goOn takes over what the process left.
func goOn(t *testing.T, d *shm.Dir, kinds map[string]string) {
	goOnQueue(t, d)
	goOnEvents(t, d)
	t.Run("counter goes on", func(t *testing.T) {
		c, err := cq.AttachCounter(cq.Named(d, "sent"), cq.CounterOptions{Events: cq.BytesCounter})
		must(t, err)
		defer func() { must(t, c.Close()) }()
		must(t, c.Add(1))
		value := shmtest.Got(c.Read()).Or(t)
		if bad, err := c.ReadErr(); value != 42 || bad != 2 || err != nil {
			t.Error(value, bad, err)
		}
	})
	t.Run("addresses go on", func(t *testing.T) {
		v := shmtest.Got(cq.OpenAddresses(cq.Named(d, "peers"),
			cq.AddressOptions{Existing: true, Format: cq.AddrOpaque})).Or(t)
		defer func() { must(t, v.Close()) }()
		buf := make([]byte, 32)
		n := shmtest.Got(v.Lookup(2, buf)).Or(t)
		if a, ok := v.Resolve([]byte("one")); string(buf[:n]) != "three" || !ok || a != 0 ||
			v.Len() != 2 {
			t.Errorf("%q, %v, %v", buf[:n], a, ok)
		}
	})
	t.Run("bytes are there", func(t *testing.T) {
		for name, want := range map[string]string{kinds["region"]: "bytes of a region",
			kinds["capture"]: "a packet"} {
			b, err := os.ReadFile(filepath.Join(d.Path(), name))
			if err != nil || !bytes.Contains(b, []byte(want)) {
				t.Errorf("%s has no %q, %v", name, want, err)
			}
		}
	})
	t.Run("the others are garbage", func(t *testing.T) {
		all := shmtest.Got(ctl.Collect(d, ctl.CollectOptions{Remove: true})).Or(t)
		for _, r := range all {
			if wanted := r.Kind != nil && slices.Contains([]string{"bell", "endpoint", "capture",
				"fabric", "outbox", "group"}, *r.Kind); wanted != (r.Fate == ctl.FateRemoved) {
				t.Errorf("%s: %s (%s)", r.Name, r.Fate, r.Reason)
			}
		}
	})
}
