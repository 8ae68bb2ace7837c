package shm

import "testing"

func BenchmarkCreate(b *testing.B) {
	d := openTestDir(b)
	for b.Loop() {
		o, err := d.Create("a", specFor(""), nil)
		if err != nil {
			b.Fatal(err)
		}
		if err := o.Unlink(); err != nil {
			b.Fatal(err)
		}
		o.Close()
	}
}

func BenchmarkOpen(b *testing.B) {
	d := openTestDir(b)
	makeObject(b, d, "a")
	for b.Loop() {
		o, err := d.Open("a", ReadOnly)
		if err != nil {
			b.Fatal(err)
		}
		o.Close()
	}
}

func BenchmarkLife(b *testing.B) {
	d := openTestDir(b)
	o := makeObject(b, d, "a")
	for b.Loop() {
		if life, err := o.Life(); life != Alive {
			b.Fatal(life, err)
		}
	}
}

func BenchmarkStamp(b *testing.B) {
	d := openTestDir(b)
	for b.Loop() {
		if _, err := d.Stamp(); err != nil {
			b.Fatal(err)
		}
	}
}
