package endpoint_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/packet"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/xdp"
	"github.com/shmring/shmring/xdp/endpoint"
)

// TestHostileWire: whatever the wire brings, references stay inside of their frames, and no frame
// is lost.
func TestHostileWire(t *testing.T) {
	shmtest.Conforms(t)
	for i := range 8 {
		posted, chains, data := i&1 != 0, i&2 != 0, i&4 != 0
		t.Run(fmt.Sprintf("posted-%v-chains-%v-data-%v", posted, chains, data), func(t *testing.T) {
			s := alone(t, func(o *options) {
				o.umem.Frames = 128
				if chains {
					o.sim = xdp.SimOptions{MTU: 9000, Options: xdp.Options{MultiBuffer: true}}
				}
				o.config = func(c *endpoint.Config) {
					c.Posted, c.RemoteData, c.SourceErr = posted, data, i > 3
				}
			})
			s.bombard(t, rand.New(rand.NewPCG(uint64(i), 9)), posted)
			for posted && s.Socket().FrameStats().States[xdp.FrameReceived] > 0 {
				must(t, s.Recv(make([]byte, 9000), 0)) // one may wait for this
				s.drive(t)
				_ = s.read(t)
			}
			s.drive(t)
			if f := s.Stats().Frames; f.States[xdp.FrameLoaned]+f.States[xdp.FrameReceived] != 0 {
				t.Errorf("%+v", f)
			}
			if st := s.Stats(); st.Malformed < 100 || st.Received+st.UnknownSource < 100 {
				t.Errorf("too one-sided: %+v", st)
			}
		})
	}
}

// bombard delivers damaged packets and takes what becomes of them.
func (s *side) bombard(t *testing.T, r *rand.Rand, posted bool) {
	for range 5000 {
		b := hostile(t, r)
		s.kernel.Deliver(b)
		if posted {
			m := endpoint.Msg{Buf: make([]byte, 64+r.IntN(100)),
				Flags: cq.FlagMultiRecv * cq.Flags(r.IntN(2))}
			if err := s.RecvMsg(&m); err != nil && err != cq.ErrFull {
				t.Fatal(err)
			}
		}
		s.drive(t)
		for es := s.read(t); ; es = s.read(t) {
			for i := range es {
				if es[i].Flags&cq.FlagFrame == 0 {
					continue
				}
				chunk := uint64(s.Socket().UMEM().Geometry().ChunkBytes)
				off := es[i].Buf.Offset()
				if off%chunk < xdp.RecordBytes || off%chunk+es[i].Len > chunk {
					t.Fatalf("%+v lies outside of its frame", es[i])
				}
				_ = s.text(t, &es[i])
			}
			must(t, s.ReleaseBatch(es))
			var e cq.ErrorEntry
			if s.q.ReadErr(&e) != nil {
				break
			}
			if e.Flags&cq.FlagFrame != 0 {
				must(t, s.ReleaseError(&e))
			}
		}
	}
}

// hostile returns a packet that is nearly right.
func hostile(t *testing.T, r *rand.Rand) []byte {
	from, size := addrB, r.IntN(200)
	if r.IntN(4) == 0 {
		from = stranger
	}
	if r.IntN(4) == 0 {
		size = r.IntN(8000)
	}
	path := packet.Path{LocalMAC: macB, NextMAC: macA, Src: from, Dst: addrA}
	path.Tags = make([]packet.Tag, r.IntN(3))
	tm, err := path.Template()
	must(t, err)
	b := make([]byte, 9000)
	n, err := tm.Build(b, []byte("ShRM\x00\x01\x00\x00some data behind it"+string(make([]byte, size))))
	must(t, err)
	for range r.IntN(4) {
		b[12+r.IntN(40)] ^= 1 << r.IntN(8)
	}
	if r.IntN(4) == 0 {
		n = 14 + r.IntN(n)
	}
	return b[:n]
}
