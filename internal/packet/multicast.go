package packet

import "net/netip"

// MulticastMAC returns the hardware address that frames to a group go to (RFC 1112, RFC 2464), or
// to all stations for the limited broadcast address. ok is false for any other address: its
// neighbour has to be asked for.
func MulticastMAC(group netip.Addr) (mac [6]byte, ok bool) {
	group = group.Unmap()
	switch {
	case !group.IsValid():
		return mac, false
	case group.Is4() && group == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return [6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, true
	case !group.IsMulticast():
		return mac, false
	case group.Is4():
		a := group.As4()
		return [6]byte{0x01, 0x00, 0x5e, a[1] & 0x7f, a[2], a[3]}, true
	}
	a := group.As16()
	return [6]byte{0x33, 0x33, a[12], a[13], a[14], a[15]}, true
}
