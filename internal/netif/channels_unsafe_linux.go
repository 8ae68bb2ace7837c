package netif

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ethtoolChannels is struct ethtool_channels of linux/ethtool.h.
type ethtoolChannels struct {
	cmd, maxRx, maxTx, maxOther, maxCombined uint32
	rx, tx, other, combined                  uint32
}

// channelsOf carries out a command about an interface's channels (SIOCETHTOOL).
func channelsOf(fd int, name string, c *ethtoolChannels) error {
	var request struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte // struct ifreq is larger
	}
	if len(name) >= len(request.name) {
		return unix.EINVAL
	}
	copy(request.name[:], name)
	request.data = unsafe.Pointer(c)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL,
		uintptr(unsafe.Pointer(&request)))
	runtime.KeepAlive(c)
	if errno != 0 {
		return errno
	}
	return nil
}
