package cq

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"strconv"
	"syscall"

	"github.com/shmring/shmring/internal/kind"
)

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

// String returns the lower-case name.
func (f AddressFormat) String() string {
	switch f {
	case AddrUnspec:
		return "unspec"
	case AddrSockaddr:
		return "sockaddr"
	case AddrSockaddrIn:
		return "sockaddr_in"
	case AddrSockaddrIn6:
		return "sockaddr_in6"
	case AddrOpaque:
		return "opaque"
	}
	return "unknown"
}

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

// Sockaddr returns the address as a sockaddr_in or sockaddr_in6, as Insert takes it. A zone is
// kept if it is the number of an interface. The zero AddrPort gives nil.
func Sockaddr(a netip.AddrPort) []byte { return AppendSockaddr(nil, a) }

// AppendSockaddr is Sockaddr into the caller's memory.
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
