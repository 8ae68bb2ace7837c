package cq

import (
	"errors"

	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/shm"
)

// What tests need to scribble over address vectors.
const (
	SectAddrWords = kind.SectAddrWords
	SectAddrRows  = kind.SectAddrRows
	SectAddrIndex = kind.SectAddrIndex
	AddrRowUsed   = kind.AddrRowUsed
	AddrRowHasID  = kind.AddrRowHasID
)

// AddressCells returns how many cells of the index are in use.
func AddressCells(v *AddressVector) (n int) {
	for i := range v.table.Index {
		if v.table.Index[i].Load() != 0 {
			n++
		}
	}
	return n
}

// AddressSpec is the layout of a vector.
func AddressSpec(name string, o AddressOptions) (shm.Spec, error) {
	o, err := o.resolve("create", name)
	return o.spec(name), err
}

// CopyAddresses makes a vector of what stands in another one now, which nobody owns.
func CopyAddresses(d *shm.Dir, from, to string) error {
	src, err := d.Open(from, shm.ReadOnly)
	if err != nil {
		return err
	}
	defer src.Close()
	o, err := storedAddresses("copy", from, src.Header())
	if err != nil {
		return err
	}
	spec := o.spec(to)
	spec.UUID = src.Header().UUID // which the index depends on
	dst, err := d.Create(to, spec, func(dst *shm.Object) error {
		for _, s := range spec.Sections {
			in, _, err := src.Section(s.Kind, s.ID)
			out, _, err2 := dst.Section(s.Kind, s.ID)
			if err := errors.Join(err, err2); err != nil {
				return err
			}
			copy(out, in)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return dst.Close()
}

// AddressHome returns the cell of the index that the search for an address begins at.
func AddressHome(v *AddressVector, raw []byte) uint32 {
	return v.table.Key(raw).Hash & v.table.Mask
}
