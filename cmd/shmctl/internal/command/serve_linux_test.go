package command

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/veth"
	"github.com/shmring/shmring/internal/xdptest"
	"github.com/shmring/shmring/xdp/device"
)

// said is what a command prints, as it comes.
type said struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *said) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *said) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.SplitAfter(strings.TrimSuffix(l.text.String(), "\n"), "\n")
}

// serving runs the verb in the namespace of an end until stop is called, which returns its code.
func serving(t *testing.T, e *veth.End, args ...string) (out, errs *said, stop func() int) {
	t.Helper()
	out, errs = &said{}, &said{}
	ctx, cancel := context.WithCancel(t.Context())
	code := make(chan int, 1)
	args = append([]string{"serve", "--dev", e.Name, "-o", "json"}, args...)
	go func() {
		_ = e.Do(func() error {
			code <- Main(ctx, args, strings.NewReader(""), out, errs)
			return nil
		})
	}()
	stop = sync.OnceValue(func() int { cancel(); return <-code })
	t.Cleanup(func() { stop() })
	for end := time.Now().Add(time.Minute); !strings.HasSuffix(out.all()[0], "}"); {
		if s := errs.all()[0]; s != "" || time.Now().After(end) {
			break
		}
		time.Sleep(time.Millisecond)
	}
	return out, errs, stop
}

func status(t *testing.T, line string) (s serveStatus) {
	t.Helper()
	valid(t, strings.TrimSuffix(line, "\n")+"\n")
	var v struct{ Serve serveStatus }
	must(t, json.Unmarshal([]byte(line), &v))
	return v.Serve
}

// TestServe: the verb serves a program over a real wire, with addresses that the kernel resolves,
// says so, and leaves nothing.
func TestServe(t *testing.T) {
	shmtest.Conforms(t)
	pair := xdptest.NewPair(t, veth.Config{Queues: 2})
	if os.Geteuid() != 0 {
		shmtest.Require(t, "xdp", os.ErrPermission)
	}
	path := filepath.Join(t.TempDir(), "s")
	out, errs, stop := serving(t, pair.B, "--socket", path, "--allow", "uid:0,ports=5000-5001")
	if errs.all()[0] != "" {
		t.Fatal(errs.all())
	}
	ready := status(t, out.all()[0])
	if ready.State != "ready" || ready.Queues != 2 || ready.Mode != "native" || ready.Bind != "copy" ||
		ready.Socket != path || len(ready.Allow) != 1 {
		t.Errorf("%+v", ready)
	}
	e, err := device.Dial(t.Context(), path, device.Request{Name: "test", Ports: []uint16{5000}})
	must(t, err)
	defer e.Close()
	echo(t, pair, e)
	// Sockets' UMEMs, and of the application: UMEM, page, payload, and three queues with lanes.
	text := ok(t, "check", "--pid", strconv.Itoa(os.Getpid()))
	number, _, whole := strings.Cut(text, " objects checked, 0 findings")
	if n, err := strconv.Atoi(number); err != nil || !whole || n < 10 {
		t.Error(text)
	}
	_, _, again := serving(t, pair.B, "--socket", path)
	if code := again(); code != 1 {
		t.Errorf("a second one at the path: exit %d", code)
	}
	_, errs, again = serving(t, pair.B, "--socket", path+"2")
	var p struct{ Error problem }
	must(t, json.Unmarshal([]byte(errs.all()[0]), &p))
	if code := again(); code != 1 ||
		p.Error.Hint == "" && !strings.Contains(p.Error.Message, "program") {
		t.Errorf("a second one on the interface: exit %d, %+v", code, p)
	}
	if code := stop(); code != 0 {
		t.Errorf("exit %d", code)
	}
	ended := status(t, out.all()[1])
	if ended.State != "ended" || ended.Admitted != 1 || ended.Received == 0 {
		t.Errorf("%+v", ended)
	}
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket: %v", err)
	}
}

// echo sends a datagram to a kernel socket at the other end and gets it back.
func echo(t *testing.T, pair *veth.Pair, e *device.Endpoint) {
	t.Helper()
	var c *net.UDPConn
	xdptest.Do(t, pair.A, func() (err error) {
		c, err = net.ListenUDP("udp4", &net.UDPAddr{IP: pair.A.Addr.AsSlice(), Port: 6000})
		return err
	})
	defer c.Close()
	must(t, c.SetDeadline(time.Now().Add(time.Minute)))
	must(t, e.SendTo([]byte("there"), netip.AddrPortFrom(pair.A.Addr, 6000), 7))
	buf := make([]byte, 100)
	n, from, err := c.ReadFromUDPAddrPort(buf)
	must(t, err)
	_, err = c.WriteToUDPAddrPort(buf[:n], from)
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		var es [1]cq.Entry
		_, err := cq.ReadContext(ctx, e.Queue(), es[:], cq.ReadOptions{})
		must(t, err)
		if es[0].Flags&cq.FlagFrame == 0 {
			continue
		}
		loan, err := e.View(&es[0])
		must(t, err)
		if string(loan.Bytes()) != "there" {
			t.Errorf("got %q", loan.Bytes())
		}
		loan.Release()
		must(t, e.Release(&es[0]))
		return
	}
}

// TestServeRefused: what cannot be served has the code that other verbs give it, and a remedy.
func TestServeRefused(t *testing.T) {
	pair := xdptest.NewPair(t, veth.Config{})
	if os.Geteuid() != 0 {
		shmtest.Require(t, "xdp", os.ErrPermission)
	}
	path := filepath.Join(t.TempDir(), "s")
	for _, c := range []struct {
		want int
		args []string
	}{
		{3, []string{"--dev", "no-such-dev", "--socket", path}},
		{3, []string{"--socket", path, "--queue", "9"}},
		{1, []string{"--socket", path, "--queue", "0", "--bind", "zerocopy"}},
		{3, []string{"--socket", filepath.Join(path, "no", "directory")}},
	} {
		_, errs, stop := serving(t, pair.B, c.args...)
		code := stop()
		if p := failure(t, errs.all()[0]+"\n"); code != c.want || p.Hint == "" {
			t.Errorf("%v: exit %d, %+v", c.args, code, p)
		}
	}
}
