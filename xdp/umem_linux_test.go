package xdp

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

func TestUMEMIsSealed(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	u, err := NewUMEM(UMEMOptions{Name: "umem", Frames: 8, ChunkBytes: 4096, HeadroomBytes: 128})
	must(t, err)
	defer u.Close(t.Context())
	fd := u.Region().Object().FD()
	if _, err := unix.Mmap(fd, 0, 4096, unix.PROT_WRITE, unix.MAP_SHARED); err == nil {
		t.Error("it can be mapped writable")
	}
	for _, size := range []int64{0, 1 << 30} {
		if err := unix.Ftruncate(u.Region().Object().FD(), size); !errors.Is(err, unix.EPERM) {
			t.Errorf("resize to %d: %v", size, err)
		}
	}
	if _, err := unix.Pwrite(u.Region().Object().FD(), []byte{1}, 4096); !errors.Is(err, unix.EPERM) {
		t.Errorf("write: %v", err)
	}
	u.Region().Bytes()[5] = 0xaa // our own mapping still is writable
	peer, g, err := OpenUMEM(u.Region().Object().FD(), "peer", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close(context.Background())
	if g != u.Geometry() || g.Chunk(4096+777) != 4096 {
		t.Errorf("geometry %+v, want %+v", g, u.Geometry())
	}
	if peer.Bytes()[5] != 0xaa || peer.ID() != u.Region().ID() {
		t.Error("the peer sees something else")
	}
}

// TestOpenUMEMRefuses: objects that are no UMEM, or whose header lies about it.
func TestOpenUMEMRefuses(t *testing.T) {
	t.Parallel()
	good := func() shm.Spec {
		return kind.UMEM{Frames: 8, ChunkBytes: 2048, HeadroomBytes: 64}.Spec("")
	}
	for name, c := range map[string]struct {
		change func(*shm.Spec)
		want   error
	}{
		"kind":        {func(s *shm.Spec) { s.Kind = shm.KindRegion }, shm.ErrKind},
		"section":     {func(s *shm.Spec) { s.Sections[0].Kind = 1 }, shm.ErrKind},
		"frames":      {func(s *shm.Spec) { s.Attrs[0] = 9 }, shm.ErrCorrupt},
		"many frames": {func(s *shm.Spec) { s.Attrs[0] = 1<<32 + 8 }, shm.ErrCorrupt},
		"feature":     {func(s *shm.Spec) { s.FeatIncompat = 1 << 40 }, shm.ErrVersion},
	} {
		spec := good()
		c.change(&spec)
		o, err := shm.CreateMemfd(spec, nil)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if _, _, err := OpenUMEM(o.FD(), name, 0); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		must(t, o.Close())
	}
	o := shmtest.Got(shm.CreateMemfd(good(), nil)).Or(t)
	defer o.Close()
	r, _, err := OpenUMEM(o.FD(), "good", 0)
	must(t, err)
	must(t, r.Close(context.Background()))
	if _, _, err := OpenUMEM(-1, "none", 0); err == nil {
		t.Error("opened no descriptor")
	}
}

func TestReadFrameChecks(t *testing.T) {
	t.Parallel()
	g := Geometry{Frames: 4, ChunkBytes: 2048, HeadroomBytes: RecordBytes}
	o := shmtest.Got(shm.CreateMemfd(shm.Spec{Kind: shm.KindUMEM, Name: "frames",
		Sections: []shm.Section{{Kind: kind.SectFrames, Length: g.bytes(), ElemSize: 1,
			Capacity: g.bytes()}}}, nil)).Or(t)
	r := shmtest.Got(shm.NewRegion(o, kind.SectFrames)).Or(t)
	t.Cleanup(func() { _ = r.Close(context.WithoutCancel(t.Context())) })
	want := Record{Sequence: 9, Src: netip.MustParseAddrPort("192.0.2.1:4000"),
		Dst: netip.MustParseAddrPort("192.0.2.2:4791")}
	want.Put(r.Bytes()[2048:], false)
	for _, off := range []uint64{2048, 2048 + 362, 4095} {
		if got, err := ReadFrame(r, g, r.Ref(off)); err != nil || got != want {
			t.Errorf("at %d: %+v, %v", off, got, err)
		}
	}
	for ref, wantErr := range map[shm.Ref]error{
		r.Ref(g.bytes()): ErrFrame, r.Ref(1<<48 - 1): ErrFrame,
		shm.MakeRef(r.ID()+1, 0): shm.ErrStale,
	} {
		if _, err := ReadFrame(r, g, ref); !errors.Is(err, wantErr) {
			t.Errorf("%v: %v", ref, err)
		}
	}
	// A geometry that is larger than the memory.
	g.Frames = 1000
	if _, err := ReadFrame(r, g, r.Ref(5*2048)); !errors.Is(err, shm.ErrCorrupt) {
		t.Error(err)
	}
	for range 1000 {
		_, _ = ReadFrame(r, g, shm.Ref(rand.Uint64()))
	}
}

// TestPrivilegeHint: what is missing is named, and what is not missing is not.
func TestPrivilegeHint(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		h         hostFindings
		has, lets string
	}{
		{hostFindings{missingCaps: []string{"CAP_BPF"}, memlockBytes: 1}, "lacks CAP_BPF:", "ulimit"},
		{hostFindings{memlockBytes: ^uint64(0)}, "user namespace", "lacks"},
		{hostFindings{memlockBytes: 1, memlockFree: true}, "user namespace", "ulimit"},
	} {
		got := privilegeHint(c.h)
		if !strings.Contains(got, c.has) || strings.Contains(got, c.lets) {
			t.Errorf("%+v: %q", c.h, got)
		}
	}
}

var must = shmtest.Must

// waiting is a bind that has found its queue busy.
func waiting(timeout time.Duration, holder func(int, uint32) (int, error)) *busyWait {
	w := (&Socket{ifname: "eth7", ifindex: 7, queue: 3}).newBusyWait(Options{BusyTimeout: timeout})
	w.holder = holder
	return w
}

// TestBusyWait: a bind waits for what is dead or not known, and for nobody who lives unless it was
// told to.
func TestBusyWait(t *testing.T) {
	t.Parallel()
	busy := refine(ErrQueueBusy, unix.EBUSY)
	asked := 0
	answers := func(pid int, err error) func(int, uint32) (int, error) {
		return func(ifindex int, queue uint32) (int, error) {
			if asked++; ifindex != 7 || queue != 3 {
				t.Errorf("asked for queue %d of %d", queue, ifindex)
			}
			return pid, err
		}
	}
	living := func(err error) {
		t.Helper()
		var by *BusyError
		if !errors.As(err, &by) || by.PID != os.Getpid() || by.Command == "" || by.Queue != 3 ||
			!errors.Is(err, ErrQueueBusy) || !errors.Is(err, unix.EBUSY) ||
			!strings.Contains(err.Error(), by.Command) {
			t.Errorf("%v", err)
		}
	}
	w := waiting(0, answers(os.Getpid(), nil))
	if err := w.again(t.Context(), busy); err != nil {
		t.Errorf("not known to stay: %v", err)
	}
	later(w, firstLook)
	living(w.again(t.Context(), busy))
	w = waiting(time.Hour, answers(os.Getpid(), nil))
	if err := w.again(t.Context(), busy); err != nil {
		t.Errorf("told to wait: %v", err)
	}
	w.deadline = time.Now()
	living(w.again(t.Context(), busy))

	for _, nobody := range []int{0, 1<<22 + 1} { // of which the second has no process
		w = waiting(0, answers(nobody, nil))
		for range 3 {
			if err := w.again(t.Context(), busy); err != nil {
				t.Errorf("held by %d: %v", nobody, err)
			}
		}
		w.deadline = time.Now()
		if err := w.again(t.Context(), busy); err != busy {
			t.Errorf("in the end: %v", err)
		}
	}
	asked = 0
	w = waiting(0, answers(0, unix.ENOENT))
	for range 3 {
		must(t, w.again(t.Context(), busy))
		later(w, 4*firstLook)
	}
	if asked != 1 {
		t.Errorf("a kernel that does not know was asked %d times", asked)
	}
	if err := waiting(-1, answers(0, nil)).again(t.Context(), busy); err != busy {
		t.Errorf("told not to wait: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w = waiting(0, answers(0, nil))
	w.pause = time.Hour
	if err := w.again(ctx, busy); !errors.Is(err, context.Canceled) || !errors.Is(err, ErrQueueBusy) {
		t.Errorf("canceled: %v", err)
	}
}

// later has a bind find that so much time has passed.
func later(w *busyWait, d time.Duration) {
	now := w.now().Add(d)
	w.now = func() time.Time { return now }
}

// TestBusyLooks: only who has the queue at two looks, between which there is time to execute a
// program, or to end, keeps it; and where nobody is seen the looks become rare.
func TestBusyLooks(t *testing.T) {
	t.Parallel()
	busy := refine(ErrQueueBusy, unix.EBUSY)
	for name, c := range map[string]struct {
		pids  []int
		stays bool
	}{
		"the same":          {[]int{os.Getpid(), os.Getpid()}, true},
		"another one":       {[]int{os.Getpid(), os.Getppid()}, false},
		"nobody any more":   {[]int{os.Getpid(), 0}, false},
		"somebody":          {[]int{0, os.Getpid()}, false},
		"another one, then": {[]int{1, os.Getpid(), os.Getpid()}, true},
	} {
		looks := 0
		w := waiting(0, func(int, uint32) (int, error) { looks++; return c.pids[looks-1], nil })
		w.deadline = w.deadline.Add(time.Hour)
		later(w, 0)
		for i := range c.pids {
			err := w.again(t.Context(), busy)
			if last := i == len(c.pids)-1; errors.Is(err, ErrQueueBusy) != (c.stays && last) {
				t.Errorf("%s, look %d: %v", name, i+1, err)
			}
			if err := w.again(t.Context(), busy); !c.stays && err != nil || looks != i+1 {
				t.Errorf("%s: %d looks at once, %v", name, looks-i, err)
			}
			later(w, w.gap)
		}
	}
	looks := 0
	w := waiting(0, func(int, uint32) (int, error) { looks++; return 0, nil })
	for later(w, 0); w.again(t.Context(), busy) == nil; later(w, lastBusyPause) {
		w.pause = 0
	}
	if most := 2 + int(busyBound/firstLook); looks > 12 || looks < 3 {
		t.Errorf("%d looks in %v, of %d at equal intervals", looks, busyBound, most)
	}
}

// TestDying: a process is about to end from the moment on that it is killed, also while it cannot
// run, and is not because it is stopped.
func TestDying(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("sleep", "1000")
	must(t, cmd.Start())
	defer func() { _ = cmd.Wait() }()
	pid := cmd.Process.Pid
	if dying(pid) || dying(os.Getpid()) {
		t.Error("it lives")
	}
	must(t, cmd.Process.Signal(syscall.SIGSTOP))
	if dying(pid) {
		t.Error("it is stopped")
	}
	must(t, cmd.Process.Kill())
	if !dying(pid) {
		t.Error("it was killed")
	}
	_ = cmd.Wait()
	if !dying(pid) {
		t.Error("it is gone")
	}
}

// TestSocketOwner: the process is found that has a socket.
func TestSocketOwner(t *testing.T) {
	t.Parallel()
	syscall.ForkLock.RLock() // a child of another test has the socket until it executes
	defer syscall.ForkLock.RUnlock()
	fd := shmtest.Got(unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)).Or(t)
	var st unix.Stat_t
	must(t, unix.Fstat(fd, &st))
	if pid := socketOwner(uint32(st.Ino)); pid != os.Getpid() {
		t.Errorf("found %d", pid)
	}
	must(t, unix.Close(fd))
	if pid := socketOwner(uint32(st.Ino)); pid != 0 {
		t.Errorf("nobody has it, found %d", pid)
	}
}
