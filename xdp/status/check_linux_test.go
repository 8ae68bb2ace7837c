package status_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp/status"
)

// TestCheck: each invariant has a word that breaks it.
func TestCheck(t *testing.T) {
	d, o := newObject(t)
	path := filepath.Join(d.Path(), o.Name())
	look := func(want string) {
		t.Helper()
		obj, err := shm.OpenPath(path)
		if err != nil {
			t.Fatal(err)
		}
		defer obj.Close()
		got := status.Check(obj)
		if want == "" && len(got) > 0 || want != "" && (len(got) != 1 || got[0].Invariant != want) {
			t.Errorf("%+v, want %s", got, want)
		}
	}
	look("")
	obj, err := shm.OpenPath(path)
	if err != nil {
		t.Fatal(err)
	}
	at := obj.Header().Sections[0].Offset + 8 // the number of the interface
	if err := obj.Close(); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte{0, 0, 0, 0, 1}, int64(at)); err != nil {
		t.Fatal(err)
	}
	look("endpoint.info")

	other, err := d.Create("no-endpoint", shm.Spec{Kind: shm.KindEndpoint}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if got := status.Check(other); len(got) != 1 || got[0].Invariant != "endpoint.layout" {
		t.Errorf("%+v", got)
	}
	if err := other.Unlink(); err != nil {
		t.Error(err)
	}
}
