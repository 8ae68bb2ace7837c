package netif

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"strconv"

	"github.com/shmring/shmring/internal/packet"
	"github.com/shmring/shmring/xdp"
)

// Local is what is addressed to the interface itself: its addresses, with its hardware address, and
// the groups that anybody on this host has joined on it, with theirs. A removed one has none.
func (s *State) Local() xdp.Local {
	l := xdp.Local{}
	if s.Removed {
		return l
	}
	for p := range s.Addresses {
		l[p.Addr()] = s.MAC
	}
	for g := range s.Groups {
		if mac, ok := packet.MulticastMAC(g); ok {
			l[g] = mac
		}
	}
	return l
}

// addGroups4 adds the groups of an interface in what /proc/net/igmp holds: a line for each
// interface, which begins with its number, and behind it one for each group, which begins with a
// tab. The group is a number as it lies in the kernel's memory.
func addGroups4(groups map[netip.Addr]bool, text []byte, index int) {
	ours := false
	for line := range bytes.Lines(text) {
		words := bytes.Fields(line)
		switch {
		case len(words) == 0:
		case line[0] != '\t':
			ours = string(words[0]) == strconv.Itoa(index)
		case ours:
			if n, err := strconv.ParseUint(string(words[0]), 16, 32); err == nil {
				var b [4]byte
				binary.NativeEndian.PutUint32(b[:], uint32(n))
				groups[netip.AddrFrom4(b)] = true
			}
		}
	}
}

// addGroups6 adds those in what /proc/net/igmp6 holds: a line for each group, with the number and
// the name of its interface and the address.
func addGroups6(groups map[netip.Addr]bool, text []byte, index int) {
	for line := range bytes.Lines(text) {
		words := bytes.Fields(line)
		if len(words) < 3 || string(words[0]) != strconv.Itoa(index) {
			continue
		}
		b, err := hex.DecodeString(string(words[2]))
		if a, ok := netip.AddrFromSlice(b); ok && err == nil && a.Is6() {
			groups[a] = true
		}
	}
}
