package peers

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/shmring/shmring/fabric"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// plain is a codec of bytes as they are.
type plain struct{}

func (plain) Name() string                  { return "plain" }
func (plain) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }
func (plain) Unmarshal(b []byte, v any) error {
	*v.(*[]byte) = bytes.Clone(b)
	return nil
}

// repeater is a service that returns what it gets: a message, or each of a stream.
var repeater = grpc.ServiceDesc{ServiceName: "repeater", HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{{MethodName: "one", Handler: func(_ any, _ context.Context,
		decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		b := new([]byte)
		return b, decode(b)
	}}},
	Streams: []grpc.StreamDesc{{StreamName: "all", ServerStreams: true, ClientStreams: true,
		Handler: func(_ any, s grpc.ServerStream) error {
			for {
				b := new([]byte)
				if err := s.RecvMsg(b); err == io.EOF {
					return nil
				} else if err != nil {
					return err
				}
				if err := s.SendMsg(b); err != nil {
					return err
				}
			}
		}}}}

// rpc serves that until it is killed.
func rpc() {
	d, err := shm.OpenDir("")
	if err == nil {
		var l net.Listener
		if l, err = fabric.Listen(d, "rpc"); err == nil {
			s := grpc.NewServer(grpc.ForceServerCodec(plain{}))
			s.RegisterService(&repeater, nil)
			fmt.Println("ready")
			err = s.Serve(l)
		}
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(3)
}

// repeats has a service repeat a message, and each of a stream.
func repeats(ctx context.Context, c *grpc.ClientConn, body []byte) error {
	var got []byte
	err := c.Invoke(ctx, "/repeater/one", &body, &got, grpc.WaitForReady(true))
	if err != nil || !bytes.Equal(got, body) {
		return fmt.Errorf("%d of %d bytes came back: %w", len(got), len(body), err)
	}
	s, err := c.NewStream(ctx, &repeater.Streams[0], "/repeater/all", grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	for n := len(body); n > 0; n /= 4 {
		part := body[:n]
		if err = s.SendMsg(&part); err == nil {
			err = s.RecvMsg(&got)
		}
		if err != nil || !bytes.Equal(got, part) {
			return fmt.Errorf("%d of %d bytes of a stream: %w", len(got), n, err)
		}
	}
	if err = s.CloseSend(); err == nil {
		if err = s.RecvMsg(&got); err == io.EOF {
			return nil
		}
	}
	return fmt.Errorf("the end of a stream: %w", err)
}

// TestFabricGRPC: a server and a client of grpc-go, neither of which knows of endpoints, and a
// server that is killed under load and comes back: calls fail then, or succeed, and those to the
// next one succeed.
func TestFabricGRPC(t *testing.T) {
	d, err := shm.OpenDir("")
	must(t, err)
	t.Cleanup(func() { must(t, d.Close()) })
	c, err := grpc.NewClient("passthrough:///rpc",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(plain{})),
		grpc.WithContextDialer(func(ctx context.Context, name string) (net.Conn, error) {
			return fabric.Dial(ctx, d, name)
		}))
	must(t, err)
	body := bytes.Repeat([]byte("a request of some length. "), 8000)
	for range 3 {
		server := shmtest.Start(t, shmtest.Child(t, "rpc"))
		_ = server.Line(t)
		c.ResetConnectBackoff() // after the refusals of the time without a server
		for err = repeats(t.Context(), c, body); err != nil && t.Context().Err() == nil; {
			err = repeats(t.Context(), c, body) // one to the server before may fail
		}
		for range 20 {
			must(t, repeats(t.Context(), c, body))
		}
		var load sync.WaitGroup
		var asked atomic.Int64
		ctx, cancel := context.WithCancel(t.Context())
		for range 8 {
			load.Go(func() {
				for ctx.Err() == nil {
					_ = repeats(ctx, c, body) // may fail, and must end
					asked.Add(1)
				}
			})
		}
		for asked.Load() < 100 {
			must(t, repeats(t.Context(), c, body))
		}
		server.Kill()
		cancel()
		load.Wait()
	}
	must(t, c.Close())
}
