package xdp

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestRecordRoundTrip(t *testing.T) {
	for _, a := range []string{"192.0.2.1:4000", "[2001:db8::1]:65535"} {
		want := Record{
			Sequence: 1<<40 + 7, RxNs: 123456789, Src: netip.MustParseAddrPort(a),
			Dst: netip.MustParseAddrPort("192.0.2.2:9"), Queue: 3, VLAN: 100, PayloadOff: 46,
			PayloadLen: 1400, FrameLen: 1446, Flags: RecordVLAN | RecordChecksumOK,
		}
		b := make([]byte, RecordBytes)
		want.Put(b)
		diff := cmp.Diff(want, ReadRecord(b), cmpopts.EquateComparable(netip.AddrPort{}))
		if diff != "" {
			t.Error(diff)
		}
		if n := testing.AllocsPerRun(100, func() { want.Put(b); want = ReadRecord(b) }); n != 0 {
			t.Errorf("%v allocations", n)
		}
	}
}
