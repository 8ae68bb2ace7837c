package netif

import (
	"errors"
	"net"
	"testing"

	"github.com/shmring/shmring/internal/veth"
	"github.com/shmring/shmring/internal/xdptest"
)

// TestInNamespace: what is called is there, from there and from elsewhere, and nobody else is.
func TestInNamespace(t *testing.T) {
	p := xdptest.NewPair(t, veth.Config{NameA: "inside"})
	ns := int(p.A.NetNS().Fd())
	mine := errors.New("mine")
	look := func() error {
		if _, err := net.InterfaceByName("inside"); err != nil {
			return err
		}
		return mine
	}
	for range 10 {
		if err := InNamespace(ns, look); err != mine {
			t.Error(err)
		}
		if err := look(); err == mine {
			t.Error("still there")
		}
	}
	xdptest.Do(t, p.A, func() error {
		if err := InNamespace(ns, look); err != mine {
			t.Error(err)
		}
		return nil
	})
	file, err := OpenNamespace()
	must(t, err)
	defer file.Close()
	xdptest.Do(t, p.A, func() error {
		if err := InNamespace(int(file.Fd()), look); err == mine {
			t.Error("not elsewhere")
		}
		if err := look(); err != mine {
			t.Error(err)
		}
		return nil
	})
}
