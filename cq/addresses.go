package cq

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/text"
	"github.com/shmring/shmring/shm"
)

// ErrReadOnly: only the owner of an address vector changes it (EACCES).
var ErrReadOnly error = kind.NewSentinel("opened only to look things up",
	Errno(syscall.EACCES), nil)

// AddressOptions of an address vector (struct fi_av_attr). The zero value holds 1024 socket
// addresses. Count, AddrMaxBytes, Format, UserID and Lifetime are fixed at creation;
// [AddressVector.Options] returns what they were resolved to.
type AddressOptions struct {
	// Count is the least number of addresses that fit; it is rounded up to a power of two. 0 is
	// 1024, the most is 1<<22. A vector does not grow: memory that others map cannot.
	Count int
	// AddrMaxBytes is the longest address that fits, rounded up to a multiple of 8. 0 is 32, enough
	// for a sockaddr_in6; the most is 256.
	AddrMaxBytes int
	Format       AddressFormat
	// Check refuses addresses beyond what the format says: its error is that of the address. It is
	// this process's own.
	Check func(raw []byte) error
	// UserID allows SetUserID and InsertOptions.IDs (FI_AV_USER_ID).
	UserID   bool
	Lifetime Lifetime
	// Existing keeps OpenAddresses from making a vector.
	Existing bool
	// UserContext is the vector's own context (of fi_av_open), which Options returns.
	UserContext any
}

// AddressVector maps indices to addresses (fid_av of type FI_AV_TABLE), and addresses back to
// indices, which is how the source of a completion is named. It lies in shared memory: the process
// that created it or took it over changes it, any number of others open it by name or descriptor
// and look things up while it changes. Names of hosts are for package net to resolve:
// fi_av_insertsvc and fi_av_insertsym have no counterpart.
//
// All methods may be called from anywhere at any time. Resolve and Lookup take no lock.
type AddressVector struct {
	name  string
	fid   FID
	opt   AddressOptions
	obj   *shm.Object
	table *kind.AddressTable
	owner bool
	named bool // it has a name in a directory
	guard guard

	holders holders    // endpoints
	mu      sync.Mutex // orders changes; what follows is under it
	taken   []uint64   // the owner's own record of which rows are in use
	low     int        // no row below is free
	events  *EventQueue
	jobs    []asyncInsert
	working bool // a worker will look at jobs

	deaths deathBinding // of owners, in another process

	worker   sync.WaitGroup
	aborting atomic.Bool
}

// CreateAddresses makes an address vector and becomes its owner (fi_av_open). A vector of that name
// that exists is fs.ErrExist (EEXIST), unless it is ephemeral and its owner provably dead: then it
// is removed first. One that is [Unnamed] goes with its last process. Other errors are ErrInvalid
// and those of creating shared memory. It may be called from anywhere.
func CreateAddresses(p Place, o AddressOptions) (*AddressVector, error) {
	const op = "create addresses"
	if err := p.creates(op, placeNamed|placeUnnamed, o.Existing); err != nil {
		return nil, err
	}
	r, err := o.resolve(op, p.name)
	if err != nil {
		return nil, err
	}
	obj, err := p.make(r.spec(p.name), openAddressState)
	if err != nil {
		return nil, failed(op, p.name, err)
	}
	return newAddresses(obj, p.name, r, true, p.form == placeNamed)
}

func openAddressState(obj *shm.Object) error {
	words, err := kind.WordsOf[kind.AddrWords](obj, kind.SectAddrWords, 0)
	if err == nil {
		words.State.Store(kind.StateOpen)
	}
	return err
}

// OpenAddresses becomes the owner of a vector that exists and has no living owner, or makes one
// (fi_av_open); a living owner is a [*shm.BusyError]. Addresses keep their indices. Of a vector
// that exists, fields of o that are not zero must agree with how it was created, else ErrInvalid;
// Check and UserContext are this process's own. Other errors are shm.ErrKind for another kind of
// object, ErrCorrupt, those of CreateAddresses and of opening shared memory, and ErrBusy if others
// create and destroy it all the time. With Existing none is made: what is not there is
// fs.ErrNotExist, and a vector that its owner just destroys ErrClosed. It may be called from
// anywhere.
func OpenAddresses(p Place, o AddressOptions) (*AddressVector, error) {
	return openEither(p, o.Existing, func() (*AddressVector, error) { return adoptAddresses(p, o) },
		func() (*AddressVector, error) { return CreateAddresses(p, o) })
}

func adoptAddresses(p Place, want AddressOptions) (*AddressVector, error) {
	const op = "adopt addresses"
	obj, err := p.dir.Open(p.name, shm.ReadWrite)
	if err != nil {
		return nil, failed(op, p.name, err)
	}
	o, err := storedAddresses(op, p.name, obj.Header())
	if err == nil {
		err = want.agrees(op, p.name, o)
	}
	if err == nil {
		err = obj.Claim(func() error { return kind.RefuseClosed(op, p.name, obj) })
	}
	if err != nil {
		_ = obj.Close()
		return nil, failed(op, p.name, err)
	}
	o.Check, o.UserContext = want.Check, want.UserContext
	return newAddresses(obj, p.name, o, true, true)
}

// AttachAddresses opens a vector that another process owns, [Named] or [FromFD], to look things up
// in it (a shared AV, opened with FI_READ). It sees every change as soon as it is made, and needs
// no living owner. Errors are fs.ErrNotExist, shm.ErrKind for another kind of object, ErrClosed for
// a vector that its owner destroyed, ErrCorrupt, ErrInvalid, and those of opening shared memory. It
// may be called from anywhere.
func AttachAddresses(p Place) (*AddressVector, error) {
	const op = "open addresses"
	if err := p.only(op, placeNamed|placeFromFD); err != nil {
		return nil, err
	}
	obj, name, err := p.find(op)
	if err != nil {
		return nil, err
	}
	return openAddresses(obj, name, p.form == placeNamed)
}

func openAddresses(obj *shm.Object, name string, named bool) (*AddressVector, error) {
	const op = "open addresses"
	o, err := storedAddresses(op, name, obj.Header())
	if err == nil {
		err = kind.RefuseClosed(op, name, obj)
	}
	if err != nil {
		_ = obj.Close()
		return nil, err
	}
	return newAddresses(obj, name, o, false, named)
}

// newAddresses takes obj over.
func newAddresses(obj *shm.Object, name string, o AddressOptions, owner, named bool) (
	*AddressVector, error) {
	table, err := kind.NewAddressTable(obj, o.attrs())
	if err != nil {
		_ = obj.Close()
		return nil, err
	}
	v := &AddressVector{name: name, fid: objectFID(FIDAddresses, obj), opt: o, obj: obj,
		table: table, owner: owner, named: named}
	if owner {
		crash.At(crash.AddressClaimed)
		v.taken = make([]uint64, (o.Count+63)/64)
		buf := make([]byte, o.AddrMaxBytes)
		table.Discard(buf, uint64(o.Format))
		table.Repair(buf, func(slot int) { v.take(slot, true) })
	}
	return v, nil
}

// Close destroys the vector if this process owns it (fi_close): its name is free again, and others
// that have it open find nothing in it any more. In another process it only ends the use.
// Insertions that are under way end with ECANCELED; their events stay in the event queue. ErrBusy
// says that an endpoint is bound to the vector. Closing twice is harmless.
func (v *AddressVector) Close() error {
	return v.end("close", func() error {
		v.table.Words.State.Store(kind.StateClosed)
		if !v.named {
			return nil
		}
		return v.obj.Unlink()
	})
}

// Detach leaves the vector, with all addresses, to a successor, which finds it with OpenAddresses.
// All else, and its errors, are as with Close.
func (v *AddressVector) Detach() error {
	return v.end("detach", func() error { return nil })
}

func (v *AddressVector) end(op string, last func() error) error {
	if err := v.holders.close(); err != nil {
		return &Error{Pkg: kind.Pkg, Op: op, Name: v.name, Err: err, Hint: "close what is bound to it"}
	}
	v.abort()
	first, err := v.guard.close(func() {})
	if !first {
		return err
	}
	v.deaths.unbind()
	if v.events != nil {
		v.events.unbind()
	}
	if v.owner {
		err = last()
	}
	if err = errors.Join(err, v.obj.Close()); err != nil {
		return failed(op, v.name, err)
	}
	return nil
}

// FID returns the vector's identifier, by which events mean it.
func (v *AddressVector) FID() FID { return v.fid }

// ObjectFD returns the descriptor by which another process opens the vector, with
// [FromFD]: send it with [shm.SendFDs]. It stays the vector's, and is -1 after Close, or if this
// process can have no more.
func (v *AddressVector) ObjectFD() int {
	if !v.guard.enterAny() {
		return -1
	}
	defer v.guard.leaveAny()
	return v.obj.FD()
}

// Options returns how the vector was created, with what was left open filled in.
func (v *AddressVector) Options() AddressOptions { return v.opt }

// Len returns how many addresses are in the vector; 0 after Close.
func (v *AddressVector) Len() int {
	if !v.guard.enterAny() {
		return 0
	}
	defer v.guard.leaveAny()
	return int(min(v.table.Words.Used.Load(), uint64(v.opt.Count)))
}

const (
	addrDefaultCount = 1024
	addrDefaultBytes = 32 // a sockaddr_in6 has 28
)

// resolve checks o and fills in what was left to us.
func (o AddressOptions) resolve(op, name string) (AddressOptions, error) {
	bad := func(field string, got, want any) (AddressOptions, error) {
		return o, kind.Refuse(op, name, field, got, want, ErrInvalid)
	}
	if o.Count < 0 || o.Count > kind.AddrMaxCount {
		return bad("Count", o.Count, fmt.Sprintf("0 to %d", kind.AddrMaxCount))
	}
	if o.Count == 0 {
		o.Count = addrDefaultCount
	}
	o.Count = 1 << bits.Len(uint(o.Count-1))
	if o.AddrMaxBytes < 0 || o.AddrMaxBytes > kind.AddrLimitBytes {
		return bad("AddrMaxBytes", o.AddrMaxBytes, fmt.Sprintf("0 to %d", kind.AddrLimitBytes))
	}
	if o.AddrMaxBytes == 0 {
		o.AddrMaxBytes = addrDefaultBytes
	}
	o.AddrMaxBytes = (o.AddrMaxBytes + 7) &^ 7
	if o.Format > AddrOpaque {
		return bad("Format", uint32(o.Format), "one of the formats")
	}
	if o.Format == AddrUnspec {
		o.Format = AddrSockaddr
	}
	if n := kind.LongestAddress(uint64(o.Format)); n > o.AddrMaxBytes {
		return bad("AddrMaxBytes", o.AddrMaxBytes, fmt.Sprintf("at least %d for %v", n, o.Format))
	}
	if o.Lifetime > Persistent {
		return bad("Lifetime", uint32(o.Lifetime), "Ephemeral or Persistent")
	}
	return o, nil
}

func (o AddressOptions) attrs() kind.Addresses {
	return kind.Addresses{Count: o.Count, MaxBytes: o.AddrMaxBytes, Format: uint64(o.Format),
		Lifetime: uint64(o.Lifetime), UserID: o.UserID}
}

func (o AddressOptions) spec(name string) shm.Spec { return o.attrs().Spec(name) }

// storedAddresses returns the options that an address vector was created with, bounded.
func storedAddresses(op, name string, h shm.Header) (AddressOptions, error) {
	a, err := kind.StoredAddresses(op, name, h)
	return AddressOptions{Count: a.Count, AddrMaxBytes: a.MaxBytes, Format: AddressFormat(a.Format),
		Lifetime: Lifetime(a.Lifetime), UserID: a.UserID}, err
}

// AddressFormat says what the addresses of a vector look like (fi_info's addr_format).
type AddressFormat uint32

// Formats of addresses. Socket addresses are laid out as the kernel has them: family in the host's
// byte order, port and IP address in the network's.
const (
	AddrUnspec      AddressFormat = iota // resolved to AddrSockaddr at creation
	AddrSockaddr                         // sockaddr_in or sockaddr_in6
	AddrSockaddrIn                       // sockaddr_in, 16 bytes
	AddrSockaddrIn6                      // sockaddr_in6, 28 bytes
	AddrOpaque                           // any bytes, at least one
)

var addressNames = []string{"unspec", "sockaddr", "sockaddr_in", "sockaddr_in6", "opaque"}

// String returns the lower-case name.
func (f AddressFormat) String() string { return text.Name(f, "format", addressNames...) }

// check refuses bytes that are no address of this format, and addresses that nobody can send to.
func (f AddressFormat) check(raw []byte) error {
	bad := func(field string, got, want any, err error) error {
		return kind.Refuse("insert", f.String(), field, got, want, err)
	}
	if kind.IsAddress(uint64(f), raw) {
		return nil
	}
	a, ok := ParseSockaddr(raw)
	switch {
	case f == AddrOpaque:
		return bad("length", 0, "at least 1", ErrInvalid)
	case len(raw) != kind.SockaddrIn4Bytes && len(raw) != kind.SockaddrIn6Bytes:
		return bad("length", len(raw), "16 or 28", ErrInvalid)
	case ok && len(raw) <= kind.LongestAddress(uint64(f)) && (f != AddrSockaddrIn6 || a.Addr().Is6()):
		return bad("address", a, "one with port and host", Errno(syscall.EADDRNOTAVAIL))
	}
	return bad("family", binary.LittleEndian.Uint16(raw), "that of the format", ErrInvalid)
}

// AppendSockaddr appends the address to b as a sockaddr_in or sockaddr_in6, as Insert takes it. A
// zone is kept if it is the number of an interface. The zero AddrPort appends nothing.
func AppendSockaddr(b []byte, a netip.AddrPort) []byte {
	ip := a.Addr()
	switch {
	case ip.Is4():
		b = binary.LittleEndian.AppendUint16(b, kind.FamilyIn4)
		b = binary.BigEndian.AppendUint16(b, a.Port())
		four := ip.As4()
		b = append(b, four[:]...)
		return append(b, make([]byte, 8)...)
	case ip.Is6():
		b = binary.LittleEndian.AppendUint16(b, kind.FamilyIn6)
		b = binary.BigEndian.AppendUint16(b, a.Port())
		b = append(b, 0, 0, 0, 0) // flow information
		sixteen := ip.As16()
		b = append(b, sixteen[:]...)
		zone, err := strconv.ParseUint(ip.Zone(), 10, 32)
		if err != nil {
			zone = 0
		}
		return binary.LittleEndian.AppendUint32(b, uint32(zone))
	}
	return b
}

// ParseSockaddr reads a sockaddr_in or sockaddr_in6 of exactly its length.
func ParseSockaddr(raw []byte) (a netip.AddrPort, ok bool) { return kind.SockaddrOf(raw) }

// StrAddr returns an address in words (fi_av_straddr): 10.0.0.1:80, [fe80::1%2]:80, or the bytes in
// hexadecimal. Bytes that are no address of the vector's format are shown as they are.
func (v *AddressVector) StrAddr(raw []byte) string {
	if v.opt.Format != AddrOpaque {
		if a, ok := ParseSockaddr(raw); ok {
			return a.String()
		}
		return fmt.Sprintf("not a %v: %s", v.opt.Format, hex.EncodeToString(raw))
	}
	return hex.EncodeToString(raw)
}
