package udp_test

import (
	"net/netip"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/xdptest"
	"github.com/shmring/shmring/internal/xskernel"
	"github.com/shmring/shmring/xdp"
	"github.com/shmring/shmring/xdp/endpoint"
	"github.com/shmring/shmring/xdp/udp"
)

var (
	macA = [6]byte{2, 0, 0, 0, 0, 1}
	macB = [6]byte{2, 0, 0, 0, 0, 2}
)

// onSim returns an endpoint on a simulated socket as a backend.
func onSim(t testing.TB, name string, way endpoint.Static) (udp.Backend, *xskernel.Kernel,
	*endpoint.Endpoint) {
	t.Helper()
	umem := xdptest.NewUMEM(t, xdp.UMEMOptions{Frames: 1024})
	socket, kernel, err := xdp.Simulate(umem, xdp.SimOptions{Name: name})
	must(t, err)
	q, err := cq.Create(cq.Unnamed(name), cq.Options{Wait: cq.WaitNone})
	must(t, err)
	w, err := q.Writer()
	must(t, err)
	e, err := endpoint.Open(endpoint.Config{Socket: socket, Receive: w, Resolver: way})
	must(t, err)
	b, err := udp.OnEndpoint(e, q)
	must(t, err)
	t.Cleanup(func() {
		must(t, w.Close())
		must(t, q.Close())
	})
	return b, kernel, e
}

// newSims returns two hosts that are joined by simulated devices.
func newSims(t testing.TB, o udp.StackOptions) (s stacks, es [2]*endpoint.Endpoint) {
	t.Helper()
	hop := func(local, next [6]byte, source netip.Addr) xdp.Hop {
		return xdp.Hop{LocalMAC: local, NextMAC: next, Source: source, MTU: 1500}
	}
	ba, ka, ea := onSim(t, "a", endpoint.Static{addrB: hop(macA, macB, addrA)})
	bb, kb, eb := onSim(t, "b", endpoint.Static{addrA: hop(macB, macA, addrB)})
	xskernel.Connect(ka, kb)
	for i, b := range []udp.Backend{ba, bb} {
		st, err := udp.NewStack(o, b)
		must(t, err)
		s[i], es[i] = st, []*endpoint.Endpoint{ea, eb}[i]
		t.Cleanup(func() {
			must(t, st.Close())
			if f := es[i].Stats().Frames; f.Sum() != f.Frames || f.States[xdp.FrameLoaned] != 0 {
				t.Errorf("frames: %+v", f)
			}
		})
	}
	return s, es
}

// TestParitySim compares with sockets of the kernel over a simulated device.
func TestParitySim(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	s, _ := newSims(t, udp.StackOptions{})
	runParity(t, loopback{}, s)
}
