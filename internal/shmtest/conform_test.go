package shmtest

import (
	"slices"
	"testing"

	"github.com/shmring/shmring/testdata"
)

func TestMissing(t *testing.T) {
	rows := []testdata.Row{
		{ID: "a", Kind: testdata.RowTest, Ref: "cq.TestX/one"},
		{ID: "b", Kind: testdata.RowTest, Ref: "cq.TestX"},
		{ID: "c", Kind: testdata.RowTest, Ref: "cq.TestX/on"},
		{ID: "d", Kind: testdata.RowTest, Ref: "ring.TestY"},
		{ID: "e", Kind: testdata.RowDeviation, Ref: "another way, see cq.TestX/one"},
		{ID: "f", Kind: testdata.RowDeviation, Ref: "another way: cq.TestZ."},
	}
	got := missing(rows, "cq", []string{"cq.TestX/one/named", "ring.TestX/on"})
	want := []string{"conformance row c: cq.TestX/on did not run",
		"conformance row f: cq.TestZ did not run"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := missing(rows, "ring", []string{"ring.TestY"}); len(got) != 0 {
		t.Error(got)
	}
}

func TestNamed(t *testing.T) {
	refs := map[string]bool{"cq.TestX/one": true, "cq.TestY": true}
	for name, want := range map[string]bool{"cq.TestX/one": true, "cq.TestX/one/a/b": true,
		"cq.TestX": false, "cq.TestX/on": false, "cq.TestX/ones": false, "cq.TestY/a": true,
		"cq/a.TestY": false} {
		if named(refs, name) != want {
			t.Errorf("%s: %v", name, !want)
		}
	}
}

func TestPackagePath(t *testing.T) {
	if got := packagePath(); got != "internal/shmtest" {
		t.Error(got)
	}
}
