package command

import (
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/inspect"
)

// eventPost is an event, or a failed operation if fault is set.
type eventPost struct {
	event cq.Event
	fault *cq.EventError
}

// parseEvent makes the event that the flags describe; e has what it has in common with a
// completion.
func (p *post) parseEvent(e *cq.ErrorEntry) (*eventPost, error) {
	ev := &eventPost{event: cq.Event{Context: e.Context, Data: e.Data}}
	if p.event == "" {
		return nil, errors.New("--fid and --payload go with --event")
	}
	if e.Flags&^cq.FlagNoContext != 0 || e.Len != 0 || e.Tag != 0 || e.Buf != 0 || p.src != "" ||
		p.solicited || p.overrun != 0 {
		return nil, errors.New("an event has no flags, len, buf, tag, src, solicited or overrun-bytes")
	}
	var err error
	if ev.event.Event, err = inspect.ParseEvent(p.event); err != nil {
		return nil, plain("--event", err)
	}
	if p.fid != "" {
		if ev.event.FID, err = inspect.ParseFID(p.fid); err != nil {
			return nil, plain("--fid", err)
		}
	}
	if ev.event.Payload, err = hex.DecodeString(p.payload); err != nil {
		return nil, fmt.Errorf("--payload %q is not hex", p.payload)
	}
	if p.fault == "" {
		return ev, nil
	}
	if len(ev.event.Payload) > 0 {
		return nil, errors.New("--payload does not go with --error: use --error-data")
	}
	ev.fault = &cq.EventError{FID: ev.event.FID, Context: e.Context, Data: e.Data, Err: e.Err,
		ProvErrno: e.ProvErrno, ErrData: e.ErrData}
	return ev, nil
}

func (ev *eventPost) once(w *cq.EventWriter) (err error) {
	if ev.fault != nil {
		_, err = w.WriteErr(ev.fault)
	} else {
		_, err = w.Write(&ev.event)
	}
	return err
}
