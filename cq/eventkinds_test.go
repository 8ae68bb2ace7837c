package cq_test

import (
	"errors"
	"syscall"
	"testing"

	"github.com/shmring/shmring/cq"
)

// TestEventKinds: numbers are libfabric's, and everything has a name.
func TestEventKinds(t *testing.T) {
	kinds := []cq.EventKind{cq.EventNotify, cq.EventConnReq, cq.EventConnected, cq.EventShutdown,
		cq.EventMRComplete, cq.EventAVComplete, cq.EventJoinComplete}
	_, e := createEvents(t, cq.EventOptions{Write: true})
	seen := map[string]bool{}
	for i, k := range append(kinds, cq.EventPeerDeath, cq.EventPeerNew, cq.EventStarved,
		cq.EventLinkUp, cq.EventLinkDown, cq.EventMTU, cq.EventMAC, cq.EventAddressAdded,
		cq.EventAddressRemoved, cq.EventProgram, cq.EventQueues, cq.EventQueues+1, cq.EventUser,
		cq.EventUser+5, 99, 1<<32-1) {
		if i < len(kinds) && int(k) != i {
			t.Errorf("%v is %d, want %d", k, k, i)
		}
		if seen[k.String()] {
			t.Errorf("two kinds are %q", k)
		}
		seen[k.String()] = true
		_, err := e.Write(&cq.Event{Event: k, FID: cq.FID{Kind: cq.FIDUser, ID: ^uint64(0)}})
		must(t, err)
		var ev cq.Event
		if _, err := e.Read(&ev, 0); err != nil || ev.Event != k || ev.FID.Kind != cq.FIDUser ||
			ev.FID.ID != ^uint64(0) {
			t.Errorf("%v: %+v", err, ev)
		}
	}
}

// TestConnectionEvent has the layout of connection events (P34).
func TestConnectionEvent(t *testing.T) {
	_, e := createEvents(t, cq.EventOptions{Write: true})
	for _, want := range []cq.CMEntry{{}, {Data: []byte("hello")}, {Info: []byte("shm")},
		{Info: []byte("info of some length"), Data: []byte("data, with padding\x00\x00")}} {
		payload, err := want.AppendTo(nil)
		must(t, err)
		_, err = e.Write(&cq.Event{Event: cq.EventConnReq, Payload: payload})
		must(t, err)
		ev := cq.Event{Payload: make([]byte, 0, 100)}
		n, err := e.Read(&ev, 0)
		must(t, err)
		got, err := cq.ParseCMEntry(ev.Payload)
		if err != nil || string(got.Info) != string(want.Info) || string(got.Data) != string(want.Data) {
			t.Errorf("%v, %q, want %q", err, got, want)
		}
		if n != cq.EventHeaderBytes+8+len(want.Info)+len(want.Data) {
			t.Error(n)
		}
		for cut := range len(payload) - len(want.Data) {
			if _, err := cq.ParseCMEntry(payload[:cut]); !errors.Is(err, cq.ErrCorrupt) {
				t.Errorf("cut to %d: %v", cut, err)
			}
		}
	}
}

// TestEventStrError is P26 for events.
func TestEventStrError(t *testing.T) {
	_, e := createEvents(t, cq.EventOptions{})
	for n, want := range map[int32]string{int32(cq.ETrunc): "truncation",
		int32(syscall.ENOENT): "no such file or directory", -3: "provider error -3"} {
		if got := e.StrError(n, nil); got != want {
			t.Errorf("%d: %q", n, got)
		}
	}
	if got := e.StrError(-3, []byte{1, 0xab}); got != "provider error -3 (detail 01ab)" {
		t.Error(got)
	}
}

// TestEventOptions: what is left open is filled in, what makes no sense is refused.
func TestEventOptions(t *testing.T) {
	d := openDir(t)
	_, e := createEvents(t, cq.EventOptions{UserContext: "mine",
		Affinity: cq.Affinity{Valid: true, CPU: 3}})
	o := e.Options()
	if o.Size != 1024 || o.DataMaxBytes != 232 || o.MaxLanes != 63 || o.Affinity.CPU != 3 ||
		e.UserContext() != "mine" || e.Name() != queueName(t) || waitFD(e) != -1 {
		t.Errorf("%+v", o)
	}
	handler := func(*cq.Event, error) {}
	for field, o := range map[string]cq.EventOptions{
		"Size": {Size: -1}, "DataMaxBytes": {DataMaxBytes: 65513}, "MaxLanes": {MaxLanes: 1025},
		"Overrun": {Overrun: 7}, "Lifetime": {Lifetime: 7}, "Wait": {Wait: 77},
	} {
		_, err := cq.CreateEvents(d, "refused", o)
		wantErr(t, field, err, cq.ErrInvalid, syscall.EINVAL)
		wantField(t, err, field)
	}
	_, err := cq.CreateEvents(d, "refused", cq.EventOptions{Wait: cq.WaitFD, Handler: handler})
	wantField(t, err, "Wait")
	_, err = cq.CreateEvents(d, e.Name(), cq.EventOptions{})
	wantErr(t, "a second one", err, syscall.EEXIST)
	_, err = cq.AdoptEvents(d, "none", cq.EventOptions{})
	wantErr(t, "none to adopt", err, syscall.ENOENT)
	big, err := cq.PlanEvents(cq.EventOptions{Size: 16, DataMaxBytes: 65512}, 2)
	if err != nil || big < 3*16*65536 {
		t.Error(big, err)
	}
	if cq.WaitQueue != cq.WaitUnspec {
		t.Error("a wait queue is a futex")
	}
}

// TestEventAdopt: options that are asked for must agree.
func TestEventAdopt(t *testing.T) {
	d := openDir(t)
	e, err := cq.OpenEvents(d, "adopt", cq.EventOptions{Size: 8, DataMaxBytes: 500, Write: true,
		Wait: cq.WaitFD})
	must(t, err)
	writeEvents(t, e, 0, 3)
	var ev cq.Event
	_, err = e.Read(&ev, cq.FlagPeek)
	must(t, err)
	must(t, e.Detach())
	for field, o := range map[string]cq.EventOptions{"Size": {Size: 16},
		"DataMaxBytes": {DataMaxBytes: 100}, "MaxLanes": {MaxLanes: 5}} {
		_, err := cq.AdoptEvents(d, "adopt", o)
		wantErr(t, field, err, cq.ErrInvalid)
	}
	_, err = cq.AdoptEvents(d, "adopt", cq.EventOptions{Handler: func(*cq.Event, error) {}})
	wantField(t, err, "Wait")
	e, err = cq.OpenEvents(d, "adopt", cq.EventOptions{DataMaxBytes: 500})
	must(t, err)
	if o := e.Options(); o.Size != 8 || o.DataMaxBytes != 552 || o.Wait != cq.WaitFD {
		t.Errorf("%+v", o)
	}
	for i := range uint64(3) {
		_, err = e.Read(&ev, 0)
		if err != nil || ev.Context != i || ev.Redelivered != (i == 0) {
			t.Errorf("%v, %+v", err, ev)
		}
	}
	must(t, e.Close())
}

// TestEventPromises: what was accepted can be reported, however much is written meanwhile.
func TestEventPromises(t *testing.T) {
	_, e := createEvents(t, cq.EventOptions{Size: 8, Write: true})
	wantErr(t, "more than there is", cq.PromiseEvents(e, 9), cq.ErrFull)
	must(t, cq.PromiseEvents(e, 4))
	writeEvents(t, e, 0, 4)
	_, err := e.Write(&cq.Event{})
	wantErr(t, "into promised room", err, cq.ErrFull)
	must(t, cq.KeepEvent(e, &cq.Event{Context: 4}))
	must(t, cq.KeepEventError(e, &cq.EventError{Context: 5}))
	cq.BreakPromise(e, 1)
	writeEvents(t, e, 6, 7)
	must(t, cq.KeepEvent(e, &cq.Event{Context: 7}))
	wantErr(t, "nothing promised", cq.KeepEvent(e, &cq.Event{}), cq.ErrNoCredit)
	if got := drainEventsAnd(t, e); len(got) != 8 || got[5] != 5 || got[7] != 7 {
		t.Error(got)
	}
}
