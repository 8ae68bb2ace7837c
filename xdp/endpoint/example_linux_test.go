package endpoint_test

import (
	"context"
	"fmt"
	"log"
	"net/netip"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/xdptest"
	"github.com/shmring/shmring/internal/xskernel"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp"
	"github.com/shmring/shmring/xdp/endpoint"
)

// Two endpoints on simulated devices that are joined by a wire. On a real one the socket comes from
// xdp.Open, and the resolver is a netif.Table.
func ExampleOpen() {
	dir, err := shm.OpenDir("")
	check(err)
	defer dir.Close()
	left, right := netip.MustParseAddrPort("192.0.2.1:7"), netip.MustParseAddrPort("192.0.2.2:7")
	a, b := exampleEnd(dir, "left", left, right), exampleEnd(dir, "right", right, left)
	defer a.close()
	defer b.close()
	xskernel.Connect(a.kernel, b.kernel)

	check(a.e.Send([]byte("hello"), a.peer, 42))
	_, err = b.e.Progress()
	check(err)
	var es [1]cq.Entry
	_, err = cq.Read(b.q, es[:])
	check(err)
	payload, err := b.e.Payload(&es[0]) // in place, until it is released
	check(err)
	fmt.Printf("%s, from peer %d\n", payload, es[0].Src.Addr())
	check(b.e.Release(es[0]))

	_, err = cq.Read(a.q, es[:])
	check(err)
	fmt.Println("sent:", es[0].Context, es[0].Flags)
	// Output:
	// hello, from peer 0
	// sent: 42 MSG|SEND
}

// Several messages into one buffer, which is given back when less than 64 bytes of it are left.
func ExampleEndpoint_RecvMsg() {
	dir, err := shm.OpenDir("")
	check(err)
	defer dir.Close()
	left, right := netip.MustParseAddrPort("192.0.2.1:7"), netip.MustParseAddrPort("192.0.2.2:7")
	a, b := exampleEnd(dir, "left", left, right), exampleEnd(dir, "right", right, left, posted)
	defer a.close()
	defer b.close()
	xskernel.Connect(a.kernel, b.kernel)

	buf := make([]byte, 80)
	check(b.e.RecvMsg(&endpoint.Msg{Buf: buf, Context: 5, Flags: cq.FlagMultiRecv}))
	check(a.e.Inject([]byte("first"), a.peer))
	check(a.e.Inject([]byte("the second"), a.peer))
	check(a.e.Inject([]byte("last"), a.peer))
	for n := 1; n > 0; {
		n, err = b.e.Progress()
		check(err)
	}
	var es [4]cq.Data
	n, err := cq.Read(b.q, es[:])
	check(err)
	for _, e := range es[:n] {
		at := e.Buf.Offset()
		fmt.Printf("%s: %v\n", buf[at:at+e.Len], e.Flags)
	}
	// Output:
	// first: MSG|RECV
	// the second: MSG|RECV
	// last: MSG|RECV|MULTI_RECV
}

func posted(c *endpoint.Config) { c.Posted = true }

// end is one of the two ends of an example.
type end struct {
	e      *endpoint.Endpoint
	kernel *xskernel.Kernel
	q      *cq.Queue
	peer   cq.Addr
	close  func()
}

func exampleEnd(dir *shm.Dir, name string, self, other netip.AddrPort,
	change ...func(c *endpoint.Config)) *end {
	umem, err := xdp.NewUMEM(xdp.UMEMOptions{Frames: 64})
	check(err)
	socket, kernel, err := xdptest.Simulate(umem, xdptest.SimOptions{})
	check(err)
	q, err := cq.Create(cq.Named(dir, name), cq.Options{})
	check(err)
	rx, err := cq.Attach(context.Background(), cq.Named(dir, name), cq.WriterOptions{})
	check(err)
	tx, err := cq.Attach(context.Background(), cq.Named(dir, name), cq.WriterOptions{})
	check(err)
	peers, err := cq.CreateAddresses(cq.Unnamed(name+"-peers"), cq.AddressOptions{})
	check(err)
	as, err := peers.Insert([][]byte{cq.AppendSockaddr(nil, other)}, cq.InsertOptions{})
	check(err)
	c := endpoint.Config{Socket: socket, Receive: rx, Transmit: tx, Addresses: peers, Local: self,
		Resolver: endpoint.Static{other.Addr(): xdp.Hop{LocalMAC: macA, NextMAC: macB}}}
	for _, f := range change {
		f(&c)
	}
	e, err := endpoint.Open(c)
	check(err)
	return &end{e: e, kernel: kernel, q: q, peer: as[0], close: func() {
		check(e.Close())
		check(rx.Close())
		check(tx.Close())
		check(q.Close())
		check(peers.Close())
		check(umem.Close(context.Background()))
	}}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
