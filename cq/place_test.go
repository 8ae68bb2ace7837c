package cq_test

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/shmring/shmring/cq"
)

// TestPlaceOfCall: a call refuses a place that makes no sense for it by name, and takes no other
// for that reason.
func TestPlaceOfCall(t *testing.T) {
	d := openDir(t)
	conn := new(net.UnixConn) // nothing is connected: an error of another kind follows
	places := map[string]cq.Place{"zero": {}, "named": cq.Named(d, "x"), "nowhere": cq.Named(nil, "x"),
		"unnamed": cq.Unnamed("x"), "over": cq.Over(conn), "over nothing": cq.Over(nil),
		"descriptor": cq.FromFD(-1, "")}
	creates, opens, joins := "named unnamed", "named", "named over"
	for call, tt := range map[string]struct {
		takes string
		do    func(cq.Place) error
	}{
		"Create": {creates, func(p cq.Place) error { return closing(cq.Create(p, cq.Options{})) }},
		"CreateEvents": {creates, func(p cq.Place) error {
			return closing(cq.CreateEvents(p, cq.EventOptions{}))
		}},
		"CreateCounter": {creates, func(p cq.Place) error {
			return closing(cq.CreateCounter(p, cq.CounterOptions{}))
		}},
		"CreateAddresses": {creates, func(p cq.Place) error {
			return closing(cq.CreateAddresses(p, cq.AddressOptions{}))
		}},
		"Open": {opens, func(p cq.Place) error { return closing(cq.Open(p, cq.Options{})) }},
		"OpenEvents": {opens, func(p cq.Place) error {
			return closing(cq.OpenEvents(p,
				cq.EventOptions{}))
		}},
		"OpenAddresses": {opens, func(p cq.Place) error {
			return closing(cq.OpenAddresses(p, cq.AddressOptions{}))
		}},
		"Attach": {joins, func(p cq.Place) error {
			return closing(cq.Attach(context.Background(), p, cq.WriterOptions{}))
		}},
		"AttachEvents": {joins, func(p cq.Place) error {
			return closing(cq.AttachEvents(context.Background(), p, cq.WriterOptions{}))
		}},
		"AttachCounter": {"named descriptor", func(p cq.Place) error {
			return closing(cq.AttachCounter(p, cq.CounterOptions{}))
		}},
		"AttachAddresses": {"named descriptor", func(p cq.Place) error {
			return closing(cq.AttachAddresses(p))
		}},
		"Remove":      {opens, cq.Remove},
		"SignalQueue": {opens, cq.SignalQueue},
	} {
		for name, place := range places {
			err := tt.do(place)
			var e *cq.Error
			refused := errors.As(err, &e) && e.Field == "Place" && errors.Is(err, cq.ErrInvalid)
			if takes := slices.Contains(strings.Fields(tt.takes), name); refused == takes {
				t.Errorf("%s of %s: %v", call, name, err)
			}
		}
	}
}

// closing closes what a call made, and returns the call's error.
func closing[C io.Closer](c C, err error) error {
	if err == nil {
		err = c.Close()
	}
	return err
}

// TestExisting: Open makes nothing that it was told to take over, and Create refuses to be told so.
func TestExisting(t *testing.T) {
	p := cq.Named(openDir(t), "x")
	o, e := cq.Options{Existing: true}, cq.EventOptions{Existing: true}
	a := cq.AddressOptions{Existing: true}
	for name, err := range map[string]error{"queue": closing(cq.Open(p, o)),
		"events": closing(cq.OpenEvents(p, e)), "addresses": closing(cq.OpenAddresses(p, a))} {
		wantErr(t, name, err, fs.ErrNotExist)
	}
	for name, err := range map[string]error{"queue": closing(cq.Create(p, o)),
		"events": closing(cq.CreateEvents(p, e)), "addresses": closing(cq.CreateAddresses(p, a))} {
		wantErr(t, name, err, cq.ErrInvalid)
		wantField(t, err, "Existing")
	}
	q, err := cq.Create(p, cq.Options{})
	must(t, err)
	must(t, q.Detach())
	q, err = cq.Open(p, o)
	must(t, err)
	if q.Options().Existing {
		t.Error("it is an option of the queue")
	}
	must(t, q.Close())
}
