package shm

import (
	"bytes"
	"testing"
)

const (
	secData SectionKind = 1
	secHint SectionKind = 2
)

func specFor(name string) Spec {
	return Spec{Kind: KindLane, Name: name, Attrs: [16]uint64{7, 15: 9}, Sections: []Section{
		{Kind: secData, Length: 64 * 128, ElemSize: 64, Capacity: 128, LayoutHash: LayoutHash("x")},
		{Kind: secHint, ID: 3, Length: 100},
	}}
}

func openTestDir(t testing.TB) *Dir {
	t.Helper()
	d, err := OpenDir("")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// makeObject creates an object that is unlinked and closed when the test ends.
func makeObject(t testing.TB, d *Dir, name string) *Object {
	t.Helper()
	o, err := d.Create(name, specFor(""), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if o.Owned() {
			_ = o.Unlink()
		}
		if err := o.Close(); err != nil {
			t.Error(err)
		}
	})
	return o
}

func openObject(t testing.TB, d *Dir, name string, acc Access) *Object {
	t.Helper()
	o, err := d.Open(name, acc)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { o.Close() })
	return o
}

func TestCreateOpenShareBytes(t *testing.T) {
	d := openTestDir(t)
	o := makeObject(t, d, "lane-0001")
	mine, sec, err := o.Section(secData, 0)
	if err != nil {
		t.Fatal(err)
	}
	if len(mine) != 64*128 || cap(mine) != len(mine) || sec.Offset%headerBytes != 0 {
		t.Fatalf("len %d cap %d section %+v", len(mine), cap(mine), sec)
	}
	p := openObject(t, d, "lane-0001", ReadOnly)
	theirs, _, err := p.Section(secData, 0)
	if err != nil {
		t.Fatal(err)
	}
	copy(mine, "from the owner")
	if !bytes.HasPrefix(theirs, []byte("from the owner")) {
		t.Fatal("the two mappings differ")
	}
	hint, err := p.MapWritable(secHint, 3)
	if err != nil {
		t.Fatal(err)
	}
	if len(hint) != 100 || cap(hint) != 100 {
		t.Fatalf("len %d cap %d", len(hint), cap(hint))
	}
	copy(hint, "from the peer")
	back, _, _ := o.Section(secHint, 3)
	if !bytes.HasPrefix(back, []byte("from the peer")) {
		t.Fatal("hints do not arrive")
	}
	if p.Header().Attrs != o.Header().Attrs || p.Header().UUID != o.Header().UUID {
		t.Fatal("headers differ")
	}
	if life, err := p.Life(); life != Alive || err != nil {
		t.Fatal(life, err)
	}
}
