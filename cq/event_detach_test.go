package cq

import (
	"errors"
	"testing"
	"time"
)

// TestDetachThatFailsTurnsNobodyAway: an event queue that nobody could find cannot be detached, and
// to try keeps nobody from writing to it, for however short a time: it does not even wait for who
// is writing.
func TestDetachThatFailsTurnsNobodyAway(t *testing.T) {
	e, err := CreateAnonymousEvents("e", EventOptions{Size: 4, Write: true, Shared: true})
	if err != nil {
		t.Fatal(err)
	}
	if !e.own.lock() {
		t.Fatal("shut")
	}
	refused := make(chan error, 1)
	go func() { refused <- e.Detach() }()
	select {
	case err = <-refused:
	case <-time.After(20 * time.Second):
		t.Error("it shuts the lane first")
	}
	e.own.unlock()
	if err == nil {
		err = <-refused
	}
	if !errors.Is(err, errors.ErrUnsupported) {
		t.Error(err)
	}
	if err = e.Close(); err != nil {
		t.Error(err)
	}
}
