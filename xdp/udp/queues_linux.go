package udp

import "github.com/vishvananda/netlink"

// queueCount is how many queues the device has; there may be fewer in use.
func queueCount(index int) (int, error) {
	l, err := netlink.LinkByIndex(index)
	if err != nil {
		return 0, err
	}
	return max(1, l.Attrs().NumRxQueues), nil
}
