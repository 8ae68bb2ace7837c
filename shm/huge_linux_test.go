package shm

import (
	"errors"
	"syscall"
	"testing"
)

// TestHugePagesRefused: an object of huge pages needs them reserved, and has no name.
func TestHugePagesRefused(t *testing.T) {
	spec := Spec{Kind: KindRegion, Sections: []Section{{Kind: 1, Length: 4096}}}
	spec.HugePageBytes = 3 << 20
	if _, err := CreateMemfd(spec, nil); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("3 MiB: %v", err)
	}
	spec.HugePageBytes = 2 << 20
	if n, err := Plan(spec); err != nil || n != 4<<20 {
		t.Errorf("planned %d, %v", n, err)
	}
	d, err := OpenDir(t.TempDir())
	if err == nil {
		defer d.Close()
		if _, err := d.Create("huge", spec, nil); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("with a name: %v", err)
		}
	}
	spec.Sections[0].Length = 1 << 40 // more than there can be
	if _, err := CreateMemfd(spec, nil); err == nil {
		t.Error("a TiB of huge pages")
	} else {
		t.Log(err)
	}
}
