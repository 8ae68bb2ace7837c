package peers

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/net/nettest"

	"github.com/shmring/shmring/fabric"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

var connTimes = flag.Int("conns.times", 3, "how often nettest tries connections of endpoints")

// TestFabricNettest: a connection between endpoints is what nettest says, by name and over a
// socket.
func TestFabricNettest(t *testing.T) {
	d, err := shm.OpenDir("")
	must(t, err)
	t.Cleanup(func() { must(t, d.Close()) })
	path := filepath.Join(t.TempDir(), "s")
	for name, by := range map[string]struct {
		listen func() (net.Listener, error)
		dial   func(context.Context) (net.Conn, error)
	}{
		"name": {func() (net.Listener, error) { return fabric.Listen(d, "nettest") },
			func(ctx context.Context) (net.Conn, error) { return fabric.Dial(ctx, d, "nettest") }},
		"socket": {func() (net.Listener, error) {
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
			if err != nil {
				return nil, err
			}
			return fabric.ListenOver(l, nil), nil
		}, func(ctx context.Context) (net.Conn, error) {
			socket, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
			if err != nil {
				return nil, err
			}
			defer socket.Close()
			return fabric.DialOver(ctx, socket, nil)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			for range *connTimes {
				nettest.TestConn(t, func() (a, b net.Conn, stop func(), err error) {
					l, err := by.listen()
					if err != nil {
						return nil, nil, nil, err
					}
					if a, err = by.dial(context.Background()); err == nil {
						b, err = l.Accept()
					}
					return a, b, func() {
						_ = a.Close() // a test may have closed them
						_ = b.Close()
					}, errors.Join(err, l.Close())
				})
			}
		})
	}
}

// web serves what it is asked to repeat, until it is killed or told to end.
func web() {
	fatal := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(3)
		}
	}
	d, err := shm.OpenDir("")
	fatal(err)
	l, err := fabric.Listen(d, "web")
	fatal(err)
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if body, err := io.ReadAll(r.Body); err == nil {
			_, _ = w.Write(body)
		}
	})}
	fmt.Println("ready")
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		fatal(s.Shutdown(context.Background()))
		os.Exit(0)
	}()
	_ = s.Serve(l)
	select {} // Shutdown goes on
}

// TestFabricHTTP: a server and a client of net/http, neither of which knows of endpoints, and a
// server that is killed under load: requests fail then, or succeed, and those to the next one
// succeed.
func TestFabricHTTP(t *testing.T) {
	d, err := shm.OpenDir("")
	must(t, err)
	t.Cleanup(func() { must(t, d.Close()) })
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 8,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return fabric.Dial(ctx, d, "web")
		}}}
	body := bytes.Repeat([]byte("a request of some length. "), 4000)
	ask := func() error {
		r, err := client.Post("http://web/", "text/plain", bytes.NewReader(body))
		if err != nil {
			return err
		}
		defer r.Body.Close()
		if got, err := io.ReadAll(r.Body); err != nil || !bytes.Equal(got, body) {
			return fmt.Errorf("%d of %d bytes came back: %w", len(got), len(body), err)
		}
		return nil
	}
	for range 3 {
		c := shmtest.Start(t, shmtest.Child(t, "web"))
		_ = c.Line(t)
		for range 20 {
			must(t, ask())
		}
		var load sync.WaitGroup
		var asked atomic.Int64
		ctx, cancel := context.WithCancel(t.Context())
		for range 4 {
			load.Go(func() {
				for ctx.Err() == nil {
					_ = ask() // may fail, and must end
					asked.Add(1)
				}
			})
		}
		for asked.Load() < 100 {
			must(t, ask())
		}
		c.Kill()
		cancel()
		load.Wait()
	}
	client.CloseIdleConnections()
}
