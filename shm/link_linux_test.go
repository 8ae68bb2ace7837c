package shm

import (
	"errors"
	"io/fs"
	"syscall"
	"testing"
)

// TestLinkTo gives an object a second name in another directory, finds it there, and takes both
// names away; only the owner may do so, and only while the name means the object.
func TestLinkTo(t *testing.T) {
	d := openTestDir(t)
	other, err := d.Sub("other", true)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	spec := Spec{Kind: KindBell, Sections: []Section{{Kind: 1, Length: 64}}}
	o, err := d.Create("bell-1", spec, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	if err := o.LinkTo(other, "bell-1"); err != nil {
		t.Fatal(err)
	}
	if err := o.LinkTo(other, "bell-1"); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a second time: %v", err)
	}
	if err := o.LinkTo(other, "a/b"); !errors.Is(err, ErrName) {
		t.Errorf("a path: %v", err)
	}
	again, err := other.Open("bell-1", ReadWrite)
	if err != nil || again.Header().UUID != o.Header().UUID {
		t.Fatalf("by its second name: %v", err)
	}
	defer again.Close()
	if err := again.LinkTo(d, "bell-2"); !errors.Is(err, syscall.ENOLCK) {
		t.Errorf("not the owner: %v", err)
	}
	if err := again.UnlinkFrom(d, "bell-1"); !errors.Is(err, syscall.ENOLCK) {
		t.Errorf("not the owner: %v", err)
	}
	if err := errors.Join(o.UnlinkFrom(other, "bell-1"), o.Unlink()); err != nil {
		t.Error(err)
	}
	if err := o.UnlinkFrom(other, "bell-1"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("gone: %v", err)
	}
	foreign, err := other.Create("bell-1", spec, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := o.UnlinkFrom(other, "bell-1"); !errors.Is(err, ErrStale) {
		t.Errorf("a foreign object: %v", err)
	}
	if err := errors.Join(foreign.Unlink(), foreign.Close(), d.RemoveSub("other")); err != nil {
		t.Error(err)
	}
	memfd, err := CreateMemfd(spec, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer memfd.Close()
	if err := memfd.LinkTo(d, "bell-3"); !errors.Is(err, syscall.EXDEV) {
		t.Errorf("a memfd: %v", err)
	}
}
