package kind

import (
	"encoding/binary"
	"net/netip"
	"strconv"
)

// Formats of the addresses of a vector.
const (
	FormatSockaddr = 1 + iota // sockaddr_in or sockaddr_in6
	FormatSockaddrIn
	FormatSockaddrIn6
	FormatOpaque
)

const (
	SockaddrIn4Bytes = 16
	SockaddrIn6Bytes = 28
	FamilyIn4        = 2 // AF_INET
	FamilyIn6        = 10
)

// LongestAddress returns the length of a format's longest address, 0 if it has none.
func LongestAddress(format uint64) int {
	switch format {
	case FormatSockaddrIn:
		return SockaddrIn4Bytes
	case FormatSockaddr, FormatSockaddrIn6:
		return SockaddrIn6Bytes
	}
	return 0
}

// IsAddress reports whether bytes are an address of a format that somebody can send to.
func IsAddress(format uint64, raw []byte) bool {
	if format == FormatOpaque {
		return len(raw) > 0
	}
	a, ok := SockaddrOf(raw)
	if !ok || format == FormatSockaddrIn && len(raw) != SockaddrIn4Bytes ||
		format == FormatSockaddrIn6 && len(raw) != SockaddrIn6Bytes {
		return false
	}
	return a.Port() != 0 && !a.Addr().IsUnspecified()
}

// SockaddrOf reads a sockaddr_in or sockaddr_in6 of exactly its length.
func SockaddrOf(raw []byte) (a netip.AddrPort, ok bool) {
	if len(raw) < 8 {
		return a, false
	}
	port := binary.BigEndian.Uint16(raw[2:])
	switch family := binary.LittleEndian.Uint16(raw); {
	case family == FamilyIn4 && len(raw) == SockaddrIn4Bytes:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(raw[4:8])), port), true
	case family == FamilyIn6 && len(raw) == SockaddrIn6Bytes:
		ip := netip.AddrFrom16([16]byte(raw[8:24]))
		if zone := binary.LittleEndian.Uint32(raw[24:]); zone != 0 {
			ip = ip.WithZone(strconv.FormatUint(uint64(zone), 10))
		}
		return netip.AddrPortFrom(ip, port), true
	}
	return a, false
}
