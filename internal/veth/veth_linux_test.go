package veth_test

import (
	"net"
	"os"
	"testing"
	"time"

	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/veth"
)

func TestMain(m *testing.M) { shmtest.Main(m) }

func open(t *testing.T, c veth.Config) *veth.Pair {
	t.Helper()
	return shmtest.Have(veth.Open(c)).Where(t, "netns")
}

func listen(e *veth.End) (c *net.UDPConn, err error) {
	err = e.Do(func() error {
		c, err = net.ListenUDP("udp4", &net.UDPAddr{IP: e.Addr.AsSlice()})
		return err
	})
	return c, err
}

func TestPairCarriesDatagrams(t *testing.T) {
	p := open(t, veth.Config{MTU: 1400, Queues: 2})
	a := shmtest.Got(listen(p.A)).Or(t)
	defer a.Close()
	b := shmtest.Got(listen(p.B)).Or(t)
	defer b.Close()
	// The first one must arrive: the ends run and know each other.
	if _, err := a.WriteTo([]byte("hello"), b.LocalAddr()); err != nil {
		t.Fatal(err)
	}
	shmtest.Must(t, b.SetReadDeadline(time.Now().Add(time.Minute)))
	buf := make([]byte, 16)
	n, from, err := b.ReadFrom(buf)
	if err != nil || string(buf[:n]) != "hello" || from.String() != a.LocalAddr().String() {
		t.Fatalf("%q from %v, %v", buf[:n], from, err)
	}
}

func TestNamespacesAreApart(t *testing.T) {
	p := open(t, veth.Config{})
	here := shmtest.Got(os.Readlink("/proc/thread-self/ns/net")).Or(t)
	seen := map[string]bool{here: true}
	for _, e := range []*veth.End{p.A, p.B} {
		err := e.Do(func() error {
			ns, err := os.Readlink("/proc/thread-self/ns/net")
			seen[ns] = true
			if _, missing := net.InterfaceByName(e.Name); missing != nil {
				t.Errorf("%s is not in its namespace: %v", e.Name, missing)
			}
			return err
		})
		shmtest.Must(t, err)
	}
	if len(seen) != 3 {
		t.Errorf("namespaces: %v", seen)
	}
	if _, err := net.InterfaceByName(p.A.Name); err == nil {
		t.Errorf("%s is in our namespace", p.A.Name)
	}
	if now, err := os.Readlink("/proc/thread-self/ns/net"); err != nil || now != here {
		t.Errorf("we are in %s now, %v", now, err)
	}
}

func TestChange(t *testing.T) {
	p := open(t, veth.Config{})
	shmtest.Must(t, p.A.SetUp(false))
	shmtest.Must(t, p.A.SetUp(true))
	shmtest.Must(t, p.A.Remove())
	if err := p.B.SetUp(true); err == nil {
		t.Error("the other end is still there")
	}
}

func TestOpenFails(t *testing.T) {
	p, err := veth.Open(veth.Config{NameA: "a name with spaces and far too long"})
	if err == nil {
		p.Close()
		t.Fatal("no error")
	}
	t.Log(err)
}
