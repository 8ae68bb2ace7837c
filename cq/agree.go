package cq

import (
	"errors"

	"github.com/shmring/shmring/internal/kind"
)

// A successor asks for what is fixed at an object, or leaves it open with a zero. What contradicts
// the object is refused by name.

// agreed refuses a value that was asked for and is not what the object has.
func agreed[T comparable](op, name, field string, asked bool, want, have T) error {
	if asked && want != have {
		return kind.Refuse(op, name, field, have, want, ErrInvalid)
	}
	return nil
}

// agrees checks what a reader asks for against what the queue is.
func (o shape) agrees(have shape, name string) error {
	const op = "adopt"
	asked, err := o.Options.resolve(op, name)
	if err != nil {
		return err
	}
	if o.Format > have.Format {
		return kind.Refuse(op, name, "Format", have.Format, o.Format, ErrFormat)
	}
	return errors.Join(
		agreed(op, name, "Format", o.Format != FormatUnspec, o.Format, have.Format),
		agreed(op, name, "Size", o.Size != 0, asked.Size, have.Size),
		agreed(op, name, "MaxLanes", o.MaxLanes != 0, o.MaxLanes, have.MaxLanes),
		agreed(op, name, "Overrun", o.Overrun != BackPressure, o.Overrun, have.Overrun),
		agreed(op, name, "Lifetime", o.Lifetime != Ephemeral, o.Lifetime, have.Lifetime),
		agreed(op, name, "Wait", o.Wait != WaitUnspec, o.Wait, have.Wait),
		agreed(op, name, "Trust", o.Trust != SameUser, o.Trust, have.Trust),
		agreed(op, name, "WritersPay", o.WritersPay, true, have.WritersPay),
		agreed(op, name, "DataMaxBytes", o.detailBytes != 0, o.detailBytes-kind.DetailHeaderBytes,
			have.detailBytes-kind.DetailHeaderBytes))
}

// fixed returns o with what is fixed when a queue is created as the queue has it.
func (o Options) fixed(have Options) Options {
	o.Format, o.Size, o.MaxLanes, o.Overrun = have.Format, have.Size, have.MaxLanes, have.Overrun
	o.Lifetime, o.Wait, o.Trust, o.WritersPay = have.Lifetime, have.Wait, have.Trust, have.WritersPay
	o.Existing = false // that was asked, and is no option of the queue
	return o
}

// agrees checks what a process asks for against what the counter is.
func (o CounterOptions) agrees(op, name string, have CounterOptions) error {
	if err := o.check(op, name); err != nil {
		return err
	}
	return errors.Join(
		agreed(op, name, "Events", o.Events != CompletionsCounter, o.Events, have.Events),
		agreed(op, name, "Lifetime", o.Lifetime != Ephemeral, o.Lifetime, have.Lifetime))
}

// agrees checks what a successor asks for against what the vector is.
func (o AddressOptions) agrees(op, name string, have AddressOptions) error {
	format, longest := o.Format != AddrUnspec, o.AddrMaxBytes != 0
	if !format {
		o.Format = have.Format
	}
	if !longest { // else a format that needs more than the default would not do
		o.AddrMaxBytes = have.AddrMaxBytes
	}
	if format && o.Format != have.Format { // which may need more than the vector has
		return agreed(op, name, "Format", true, o.Format, have.Format)
	}
	asked, err := o.resolve(op, name)
	if err != nil {
		return err
	}
	return errors.Join(
		agreed(op, name, "Count", o.Count != 0, asked.Count, have.Count),
		agreed(op, name, "AddrMaxBytes", longest, asked.AddrMaxBytes, have.AddrMaxBytes),
		agreed(op, name, "UserID", o.UserID, true, have.UserID),
		agreed(op, name, "Lifetime", o.Lifetime != Ephemeral, o.Lifetime, have.Lifetime))
}
