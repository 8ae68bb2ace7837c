package fabric_test

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/fabric"
	"github.com/shmring/shmring/internal/shmtest"
)

// moves moves all endpoints, so often that all is done that can be.
func moves(t *testing.T, es ...*end) {
	t.Helper()
	for range 100 {
		for _, e := range es {
			_, err := e.Progress()
			noError(t, err)
		}
	}
}

// TestDelivery: a send of this level completes when its bytes are in the buffer that was posted, or
// kept by the receiver; not before that is in a call. So what is sent after it shows them, though
// nobody is told of them.
func TestDelivery(t *testing.T) {
	shmtest.Conforms(t)
	const level = cq.FlagDeliveryComplete
	for _, n := range []int{8, 4 << 10, 100 << 10} {
		for _, how := range []string{"flag", "default", "reference"} {
			for _, expected := range []bool{true, false} {
				t.Run(fmt.Sprintf("%d/%s/expected=%v", n, how, expected), func(t *testing.T) {
					o := fabric.Options{Pool: n}
					if how == "default" {
						o.TransmitFlags = level
					}
					a := opened(t, "a", o)
					b := opened(t, "b", fabric.Options{Selective: cq.FlagRecv})
					to, err := a.Resolve("b")
					noError(t, err)
					payload, buf, second := pattern(n), make([]byte, n), make([]byte, 1)
					if how == "reference" {
						payload = allocated(t, a, n)
					}
					recv := fabric.Msg{Buf: buf, Addr: fabric.Anybody}
					if expected {
						noError(t, b.RecvMsg(&recv))
					}
					if how == "default" {
						noError(t, a.Send(payload, to, 1))
					} else {
						noError(t, a.SendMsg(&fabric.Msg{Buf: payload, Addr: to, Context: 1,
							Flags: level}))
					}
					if moves(t, a); len(a.completions(t)) > 0 {
						t.Fatal("delivered to one who did not call in")
					}
					moves(t, a, b)
					cs := a.completions(t)
					kept := n <= chunk && how != "reference" || n <= fabric.MaxInline
					if (len(cs) == 1) != (expected || kept) {
						t.Fatalf("delivered: %v", cs)
					}
					if !expected {
						noError(t, b.RecvMsg(&recv))
						moves(t, a, b)
						cs = append(cs, a.completions(t)...)
					}
					if len(cs) != 1 || cs[0].Context != 1 || !bytes.Equal(buf, payload) {
						t.Fatalf("%+v, or other bytes", cs)
					}
					noError(t, b.RecvMsg(&fabric.Msg{Buf: second, Addr: fabric.Anybody, Context: 2,
						Flags: cq.FlagCompletion}))
					noError(t, a.Inject(second, to))
					if c := completes(t, b); c.Context != 2 {
						t.Errorf("it told of another: %+v", c)
					}
				})
			}
		}
	}
}

// completions takes those that there are.
func (e *end) completions(t *testing.T) []cq.Entry {
	t.Helper()
	var dst [16]cq.Entry
	n, err := cq.Read(e.q, dst[:])
	if err != nil && !errors.Is(err, cq.ErrWouldBlock) {
		t.Fatal(err)
	}
	return dst[:n]
}
