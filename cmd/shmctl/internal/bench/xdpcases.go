package bench

import (
	"context"
	"time"

	"github.com/shmring/shmring/xdp"
)

// Prefixes of our child's commands that move packets. What follows is what the rivals understand.
const (
	socketPrefix   = "xdp-"
	udpConnPrefix  = "udpconn-"
	endpointPrefix = "endpoint-"
	devicePrefix   = "device-"
)

const (
	genericSuffix = "+generic"
	// drainShare: sending takes a hundred times as long as reading from a ring, and from a socket
	// of the kernel's stack a few times.
	drainShare       = 64
	drainSocketShare = 8
	// xdpPairs and xdpRound keep a run to a minute or two; packets take microseconds.
	xdpPairs = 31
	xdpRound = 5 * time.Millisecond
	// socketBatch is that of the rows against rivals that are not AF_XDP.
	socketBatch = 32
)

// XDP measures AF_XDP sockets over pairs of veth interfaces that it makes: sending to a peer that
// drops, reading a full receive ring, echo, and ping-pong, against the same in C on the bare kernel
// interface and against other kinds of sockets. It needs two processors, network namespaces and the
// privileges of AF_XDP.
func XDP(ctx context.Context, o Options) ([]Row, error) {
	if o.Pairs == 0 {
		o.Pairs = xdpPairs
	}
	if o.RoundTime == 0 {
		o.RoundTime = xdpRound
	}
	if o.Batches == nil {
		o.Batches = []int{1, 8, 32, 64}
	}
	o = o.withDefaults()
	return measure(ctx, o, xdpCases(o))
}

// wireCase is a row about packets: name is what it is called and what the rivals are told.
func wireCase(name string, batch int) benchCase {
	c := benchCase{name: name, batch: batch, pauses: tripPauses, ours: socketPrefix + name,
		rival: name, rivalName: "c-xdp", source: "xdp", wire: true, packets: 1}
	verb, mode := splitMode(name)
	switch verb {
	case "drop":
		c.perSecond, c.solo, c.drop = true, true, mode
	case "drain":
		c.solo, c.share = true, drainShare
	case "echo":
		c.perSecond, c.packets = true, 2
	case "reflect":
		c.solo, c.reflect, c.packets = true, true, 2
	default:
		c.packets = 2
		c.sleeps = verb == "trip-block"
	}
	return c
}

// splitMode takes the mode of the programs off a command.
func splitMode(name string) (verb string, mode xdp.AttachMode) {
	if n := len(name) - len(genericSuffix); n > 0 && name[n:] == genericSuffix {
		return name[:n], xdp.AttachGeneric
	}
	return name, xdp.AttachNative
}

func xdpCases(o Options) []benchCase {
	var cases []benchCase
	for _, verb := range []string{"drop", "echo"} {
		for _, mode := range []string{"", genericSuffix} {
			for _, batch := range o.Batches {
				cases = append(cases, wireCase(verb+mode, batch))
			}
		}
	}
	for _, batch := range o.Batches { // the program is not part of it
		cases = append(cases, wireCase("drain", batch))
	}
	for _, verb := range []string{"trip", "trip-block"} {
		for _, mode := range []string{"", genericSuffix} {
			cases = append(cases, wireCase(verb+mode, 1))
		}
	}
	cases = withSelf(o, append(cases, endpointCases(o)...))
	return append(append(cases, deviceCases()...), socketCases()...)
}

// endpointCases measure a whole endpoint, with its completion queue and its address vector, against
// the same C program, which has neither.
func endpointCases(o Options) []benchCase {
	var cases []benchCase
	add := func(verb string, batch int) {
		c := wireCase(verb, batch)
		c.name, c.ours = endpointPrefix+verb, endpointPrefix+verb
		cases = append(cases, c)
	}
	for _, verb := range []string{"drop", "echo", "drain"} {
		for _, batch := range o.Batches {
			if batch == o.Batches[0] || batch == o.Batches[len(o.Batches)-1] || batch == socketBatch {
				add(verb, batch)
			}
		}
	}
	add("trip", 1)
	add("trip-block", 1)
	return cases
}

// linkedIn is the name of an endpoint as a rival of a device process.
const linkedIn = "linked-in"

// deviceCases are the price of a device process in the middle, with its submission ring, beside the
// endpoint that is linked into the application.
func deviceCases() []benchCase {
	var cases []benchCase
	for _, verb := range []string{"drop", "reflect"} {
		for _, batch := range []int{1, socketBatch} {
			if verb == "reflect" && batch > 1 {
				continue
			}
			c := wireCase(verb, batch)
			c.name, c.ours = devicePrefix+verb, devicePrefix+verb
			c.rivalOurs, c.rival, c.rivalName = true, endpointPrefix+verb, linkedIn
			// Both processes work, and the one that serves sleeps when it finds nothing to do.
			c.solo, c.sleeps = false, true
			cases = append(cases, c)
		}
	}
	return cases
}

// socketCases measure us against the other ways to move packets.
func socketCases() []benchCase {
	var cases []benchCase
	for _, rival := range []struct{ name, source string }{
		{"udp-mmsg", "udp"}, {"af_packet", "afpacket"}, {"go-udpconn", ""},
	} {
		for _, verb := range []string{"drop", "drain", "echo", "trip", "trip-block"} {
			batch := socketBatch
			if verb == "trip" || verb == "trip-block" {
				batch = 1
			}
			c := wireCase(verb, batch)
			c.rivalName, c.source = rival.name, rival.source
			if verb == "drain" {
				c.share = drainSocketShare
			}
			if rival.source == "" {
				if verb == "trip" { // it knows no way but to block
					continue
				}
				c.rivalOurs, c.rival = true, udpConnPrefix+verb
			}
			cases = append(cases, c)
		}
	}
	return cases
}
