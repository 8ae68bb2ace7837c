package peers

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math/big"
	"net"
	"os"
	"testing"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/shmring/shmring/internal/shmtest"
)

const quicPort = 4433

// identity is a certificate, and the configuration of a client that trusts it.
func identity(t *testing.T) (server, client *tls.Config) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	must(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"peer"},
		NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, private)
	must(t, err)
	cert, err := x509.ParseCertificate(der)
	must(t, err)
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	protocols := []string{"peers"}
	server = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der},
		PrivateKey: private}}, NextProtos: protocols}
	return server, &tls.Config{RootCAs: pool, ServerName: "peer", NextProtos: protocols}
}

// connect returns both ends of a connection; the server is on the first host.
func connect(t *testing.T, h *hosts, o *quic.Config) (server, client *quic.Conn) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), long)
	defer cancel()
	o.HandshakeIdleTimeout = long
	st, ct := identity(t)
	ln, err := quic.Listen(h.listen(0, quicPort), st, o)
	must(t, err)
	t.Cleanup(func() { ln.Close() })
	client, err = quic.Dial(ctx, h.listen(1, 0), net.UDPAddrFromAddrPort(h.addr(0, quicPort)), ct, o)
	must(t, err)
	server, err = ln.Accept(ctx)
	must(t, err)
	t.Cleanup(func() {
		_ = client.CloseWithError(0, "")
		_ = server.CloseWithError(0, "")
	})
	return server, client
}

// TestQUIC: megabytes arrive whole in both directions at once, and each end learns of the other's
// last word.
func TestQUIC(t *testing.T) {
	shmtest.Conforms(t)
	for _, c := range sides {
		t.Run(c.name, func(t *testing.T) {
			h := newHosts(t, c.who)
			server, client := connect(t, h, &quic.Config{MaxIdleTimeout: long})
			results := make(chan error, 4)
			exchange(t, server, client, results)
			for range cap(results) {
				select {
				case err := <-results:
					must(t, err)
				case <-time.After(long):
					t.Fatal("the transfer takes too long")
				}
			}
			must(t, client.CloseWithError(42, "enough"))
			_, err := server.AcceptStream(t.Context())
			var last *quic.ApplicationError
			if !errors.As(err, &last) || last.ErrorCode != 42 || last.ErrorMessage != "enough" {
				t.Errorf("the last word: %v", err)
			}
		})
	}
}

// exchange sends megabytes both ways, each with its sum behind it.
func exchange(t *testing.T, server, client *quic.Conn, results chan error) {
	const size = 4 << 20
	data := make([]byte, size)
	_, _ = rand.Read(data)
	sum := sha256.Sum256(data)
	for _, ends := range [][2]*quic.Conn{{server, client}, {client, server}} {
		go func() {
			s, err := ends[0].OpenUniStreamSync(t.Context())
			if err == nil {
				_, err = s.Write(append(bytes.Clone(data), sum[:]...))
			}
			if err == nil {
				err = s.Close()
			}
			results <- err
		}()
		go func() {
			s, err := ends[1].AcceptUniStream(t.Context())
			if err != nil {
				results <- err
				return
			}
			got, err := io.ReadAll(s)
			if err == nil && len(got) != size+len(sum) {
				err = io.ErrUnexpectedEOF
			}
			if err == nil && sha256.Sum256(got[:size]) != [32]byte(got[size:]) {
				err = errors.New("the sum is wrong")
			}
			results <- err
		}()
	}
}

// TestQUICLoss: a stream's deadline passes, and the connection ends, when the wire is cut.
func TestQUICLoss(t *testing.T) {
	shmtest.Conforms(t)
	for _, c := range sides {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel() // for what all of them do is to wait
			h := newHosts(t, c.who)
			// Longer than a machine stands still before the wire is cut.
			server, client := connect(t, h, &quic.Config{MaxIdleTimeout: 8 * time.Second})
			s, err := client.OpenStreamSync(t.Context())
			must(t, err)
			_, err = s.Write([]byte("before"))
			must(t, err)
			peer, err := server.AcceptStream(t.Context())
			must(t, err)
			buf := make([]byte, 16)
			n, err := peer.Read(buf)
			if err != nil || string(buf[:n]) != "before" {
				t.Fatalf("%q, %v", buf[:n], err)
			}
			// The end of a stack of ours, since a socket of the kernel fails if its own is down.
			cut := 0
			if c.who[0] == kernel {
				cut = 1
			}
			must(t, h.end(cut).SetUp(false))
			_, err = s.Write([]byte("after"))
			must(t, err)
			must(t, peer.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
			if _, err := peer.Read(buf); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("beyond the deadline: %v", err)
			}
			var idle *quic.IdleTimeoutError
			for name, end := range map[string]*quic.Conn{"server": server, "client": client} {
				select {
				case <-end.Context().Done():
					if err := context.Cause(end.Context()); !errors.As(err, &idle) {
						t.Errorf("%s: %v", name, err)
					}
				case <-time.After(long):
					t.Fatal("the connection survives without a wire")
				}
			}
		})
	}
}
