package shm

import (
	"errors"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestAllowList(t *testing.T) {
	me := os.Geteuid()
	for _, tt := range []struct {
		list   *AllowList
		uid    int
		gid    int
		groups []int
		want   bool
	}{
		{nil, me, 5, nil, true},
		{nil, me + 1, 5, nil, false},
		{&AllowList{}, me, 5, nil, true},
		{&AllowList{}, me + 1, 0, nil, false},
		{&AllowList{UIDs: []int{7}}, 7, 0, nil, true},
		{&AllowList{UIDs: []int{7}}, me, 7, []int{7}, false},
		{&AllowList{GIDs: []int{7}}, 7, 6, []int{8}, false},
		{&AllowList{GIDs: []int{7}}, 1, 7, nil, true},
		{&AllowList{GIDs: []int{7}}, 1, 6, []int{8, 7}, true},
	} {
		if got := tt.list.Allows(tt.uid, tt.gid, tt.groups); got != tt.want {
			t.Errorf("%+v allows %d %d %v: %v", tt.list, tt.uid, tt.gid, tt.groups, got)
		}
	}
}

// TestOpenPassed refuses whatever is not a memfd with just the right seals and all its memory.
func TestOpenPassed(t *testing.T) {
	spec := Spec{Kind: KindRegion, Sections: []Section{{Kind: 1, Length: 1 << 20}}}
	size, err := Plan(spec)
	check(t, err)
	object := func(seals Seals) *Object {
		o, err := CreateMemfd(spec, nil)
		check(t, err)
		t.Cleanup(func() { o.Close() })
		if seals != 0 {
			check(t, o.Seal(seals))
		}
		return o
	}
	good := object(SealOthers)
	fd, err := good.ShareFD()
	check(t, err)
	o, err := OpenPassed(fd, "good", size)
	check(t, err)
	if o.Header().UUID != good.Header().UUID {
		t.Error("another object")
	}
	if _, err := o.MapWritable(1, 0); err == nil {
		t.Error("a section was mapped for writing")
	}
	check(t, o.Close())
	_, err = OpenPassed(fd, "large", size-1)
	if !errors.Is(err, ErrNoSpace) {
		t.Error("too large:", err)
	}
	CloseFDs([]int{fd})
	for name, seals := range map[string]Seals{"none": 0, "all but one": SealShrink |
		SealGrow | SealSeal, "not final": SealOthers &^ SealSeal,
		"can shrink": SealOthers &^ SealShrink} {
		if _, err := OpenPassed(object(seals).FD(), name, size); !errors.Is(err, ErrOwner) {
			t.Errorf("seals: %s: %v", name, err)
		}
	}
	sparse, err := unix.MemfdCreate("sparse", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	check(t, err)
	defer unix.Close(sparse)
	_, err = unix.Pwrite(sparse, good.Bytes()[:8192], 0)
	check(t, err)
	check(t, unix.Ftruncate(sparse, int64(size)))
	_, err = unix.FcntlInt(uintptr(sparse), unix.F_ADD_SEALS, unix.F_SEAL_SEAL|unix.F_SEAL_SHRINK|
		unix.F_SEAL_GROW|unix.F_SEAL_FUTURE_WRITE)
	check(t, err)
	if _, err = OpenPassed(sparse, "sparse", size); !errors.Is(err, ErrTruncated) {
		t.Error("sparse:", err)
	}
	r, w, err := os.Pipe()
	check(t, err)
	defer r.Close()
	defer w.Close()
	if _, err = OpenPassed(int(r.Fd()), "pipe", size); !errors.Is(err, ErrOwner) {
		t.Error("pipe:", err)
	}
	if _, err = OpenPassed(-1, "none", size); !errors.Is(err, syscall.EBADF) {
		t.Error("none:", err)
	}
}
