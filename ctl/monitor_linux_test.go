package ctl_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/ctl"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

func openDir(t testing.TB) *shm.Dir {
	t.Helper()
	return shmtest.Have(shm.OpenDir("")).In(t)
}

var must = shmtest.Must

var wantErr = shmtest.WantErr

// queue makes a queue with one writer, both closed when the test ends.
func queue(t testing.TB, d *shm.Dir, name string, o cq.Options) (*cq.Queue, *cq.Writer) {
	t.Helper()
	q := shmtest.Have(cq.Create(cq.Named(d, name), o)).In(t)
	w := shmtest.Have(cq.Attach(t.Context(), cq.Named(d, name), cq.WriterOptions{})).In(t)
	return q, w
}

func TestShowDescribes(t *testing.T) {
	d := openDir(t)
	_, w := queue(t, d, "described", cq.Options{Size: 4, MaxLanes: 2, Format: cq.FormatData,
		Overrun: cq.OverrunQueue, Lifetime: cq.Persistent, Wait: cq.WaitFD, WritersPay: true})
	must(t, w.Post(&cq.Entry{}))
	q := shmtest.Got(ctl.Show(d, "described")).Or(t)
	for field, pair := range map[string][2]string{
		"format": {*q.Format, "data"}, "policy": {*q.OverrunPolicy, "overrun"},
		"lifetime": {*q.Lifetime, "persistent"}, "wait": {*q.WaitObject, "fd"},
		"paid by": {*q.OrderPaidBy, "writers"},
		"mode":    {*q.Mode, "0600"}, "order": {*q.Lanes[1].Order, "seq-cst"},
		"path": {q.Path, filepath.Join(d.Path(), "described")},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s is %q, want %q", field, pair[0], pair[1])
		}
	}
	if *q.UID != uint32(os.Geteuid()) || *q.Capacity != 4 || *q.MaxLanes != 2 ||
		*q.Depth != 1 || *q.SlotBytes != 64 || q.PerSecond != nil {
		t.Errorf("%+v", q)
	}
	var total int64
	must(t, filepath.WalkDir(q.Path, func(_ string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			var info fs.FileInfo
			info, err = e.Info()
			total += info.Size()
		}
		return err
	}))
	if *q.SizeBytes != uint64(total) {
		t.Errorf("%d bytes, files have %d", *q.SizeBytes, total)
	}
	m := ctl.NewMonitor(d)
	defer m.Close()
	list := shmtest.Got(m.List()).Or(t)
	if len(list) != 1 || *list[0].UUID != *q.UUID {
		t.Errorf("listed: %+v", list)
	}
}

func TestMonitorRates(t *testing.T) {
	d := openDir(t)
	q, w := queue(t, d, "rates", cq.Options{Size: 64})
	m := ctl.NewMonitor(d)
	defer m.Close()
	first, err := m.Show("rates")
	must(t, err)
	if first.PerSecond != nil {
		t.Errorf("rates at the first look: %+v", first.PerSecond)
	}
	for range 10 {
		must(t, w.Post(&cq.Entry{}))
	}
	shmtest.Got(cq.Read(q, make([]cq.Context, 4))).Or(t)
	now := shmtest.Got(m.Show("rates")).Or(t)
	r := now.PerSecond
	if r == nil || r.Posted <= 0 || r.Read <= 0 || r.Posted < 2.4*r.Read || r.Posted > 2.6*r.Read {
		t.Errorf("10 posted and 4 read: %+v", r)
	}
	if now, err = m.Show("rates"); err != nil || now.PerSecond.Posted != 0 {
		t.Errorf("idle: %+v, %v", now.PerSecond, err)
	}
}

// TestMonitorNewQueueOfTheName must not compare a queue with the one that had its name before.
func TestMonitorNewQueueOfTheName(t *testing.T) {
	d := openDir(t)
	m := ctl.NewMonitor(d)
	defer m.Close()
	for range 2 {
		q := shmtest.Got(cq.Create(cq.Named(d, "again"), cq.Options{Size: 4})).Or(t)
		one := shmtest.Got(m.Show("again")).Or(t)
		if one.PerSecond != nil {
			t.Errorf("%+v", one.PerSecond)
		}
		must(t, q.Close())
	}
	q, err := m.Show("again")
	if !errors.Is(err, fs.ErrNotExist) || q.Error == nil || q.Error.Code != ctl.CodeNotFound {
		t.Errorf("%+v, %v", q, err)
	}
}

func TestHealth(t *testing.T) {
	d := openDir(t)
	q, w := queue(t, d, "health", cq.Options{Size: 2, Overrun: cq.OverrunQueue})
	health := func(want string) {
		t.Helper()
		got := shmtest.Got(ctl.Show(d, "health")).Or(t)
		if *got.State != want {
			t.Errorf("%s, want %s", *got.State, want)
		}
	}
	health("open")
	must(t, w.Post(&cq.Entry{}))
	must(t, w.Post(&cq.Entry{}))
	health("full")
	if err := w.Post(&cq.Entry{}); !errors.Is(err, cq.ErrOverrun) {
		t.Fatal(err)
	}
	for err := error(nil); !errors.Is(err, cq.ErrOverrun); {
		_, err = cq.Read(q, make([]cq.Context, 2))
	}
	health("overrun")
}

func TestOpenDirMakesNothing(t *testing.T) {
	path := filepath.Join(os.Getenv(shm.EnvDir), "not-there")
	if _, err := shm.FindDir(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it was made: %v", err)
	}
}

// TestListWhileQueuesComeAndGo may find a queue or not, or what is left of it; nothing else.
func TestListWhileQueuesComeAndGo(t *testing.T) {
	d := openDir(t)
	done := make(chan error, 1)
	go func() {
		var err error
		for range 200 {
			q, e := cq.Create(cq.Named(d, "fleeting"), cq.Options{Size: 4, MaxLanes: 1})
			if err = e; err != nil {
				break
			}
			w, e := cq.Attach(t.Context(), cq.Named(d, "fleeting"), cq.WriterOptions{})
			if err = e; err != nil {
				break
			}
			if err = errors.Join(q.Close(), w.Close()); err != nil {
				break
			}
		}
		done <- err
	}()
	m := ctl.NewMonitor(d)
	defer m.Close()
	for {
		select {
		case err := <-done:
			must(t, err)
			return
		default:
		}
		list := shmtest.Got(m.List()).Or(t)
		for _, q := range list {
			if q.Name != "fleeting" || q.Error != nil && q.Error.Code != ctl.CodeNotFound {
				t.Fatalf("%s: %+v", q.Name, q.Error)
			}
			for _, l := range q.Lanes {
				if l.Error != nil {
					t.Fatalf("lane %d: %+v", l.Row, l.Error)
				}
			}
		}
	}
}
