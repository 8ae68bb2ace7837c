package cq_test

import (
	"context"
	"errors"
	"maps"
	"os"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
)

func init() {
	maps.Copy(roles, map[string]func(){"device": childDevice})
}

const deviceSources = 50

// childDevice posts what comes from many sources to an application, whose address vector it only
// reads.
func childDevice() {
	d, err := shm.OpenDir("")
	need(err)
	stop := toldToStop()
	name := os.Getenv(envQueue)
	v, err := cq.AttachAddresses(cq.Named(d, "av."+name))
	need(err)
	w, err := cq.Attach(context.Background(), cq.Named(d, name), cq.WriterOptions{})
	need(err)
	for i := uint64(0); !stop.Load(); {
		from := int(i % deviceSources)
		e := cq.Entry{Context: i, Flags: cq.FlagRecv | cq.FlagMsg, Data: uint64(from)}
		if err := postFrom(w, &e, sockaddr(from), v, true); err != cq.ErrFull {
			need(err)
			i++
		}
	}
	need(w.Close())
	need(v.Close())
}

// TestDeviceProcess: another process resolves sources in the application's vector while that
// inserts those it is told of, some of them twice, since more came from there meanwhile. Every
// source is right or unknown, and in the end all are known.
func TestDeviceProcess(t *testing.T) {
	t.Parallel()
	d, q := create(t, cq.Options{Size: 64})
	v, err := cq.CreateAddresses(cq.Named(d, "av."+q.Name()),
		cq.AddressOptions{Count: 2 * deviceSources})
	must(t, err)
	device := startChild(t, "device", envQueue+"="+q.Name())
	dst, src := make([]cq.Data, 16), make([]cq.Addr, 16)
	next, unknown, inRow := uint64(0), 0, 0
	of := map[cq.Addr]uint64{} // who has an index
	for inRow < 20*deviceSources {
		n, err := cq.ReadContext(t.Context(), q, dst, cq.ReadOptions{Source: src})
		for i, e := range dst[:n] {
			if from, ok := of[src[i]]; e.Context != next || !ok || from != e.Data {
				t.Fatalf("entry %d from %d: index %d of %v, %v", e.Context, e.Data, src[i], from, ok)
			}
			next++
			inRow++
		}
		if errors.Is(err, cq.ErrAvail) {
			e := cq.ErrorEntry{ErrData: make([]byte, cq.ErrDataMaxBytes)}
			must(t, q.ReadErr(&e))
			if e.Context != next {
				t.Fatalf("error %d, want %d", e.Context, next)
			}
			next++
			unknown++
			inRow = 0
			for _, a := range insert(t, v, e.ErrData) {
				of[a] = e.Data
			}
		} else {
			must(t, err)
		}
	}
	if unknown < deviceSources || v.Len() != deviceSources {
		t.Errorf("%d were unknown, %d are known", unknown, v.Len())
	}
	_ = device.stop(t)
	must(t, v.Close())
}
