package inspect_test

import (
	"errors"
	"syscall"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/inspect"
)

func refused(t *testing.T, text string, err error) {
	t.Helper()
	if !errors.Is(err, cq.ErrInvalid) || !errors.Is(err, syscall.EINVAL) {
		t.Errorf("%q: %v, want %v", text, err, cq.ErrInvalid)
	}
}

func TestParseFlags(t *testing.T) {
	for text, want := range map[string]cq.Flags{
		"": 0, "SEND": cq.FlagSend, "send|msg": cq.FlagSend | cq.FlagMsg,
		"FI_RECV, fi_tagged": cq.FlagRecv | cq.FlagTagged, "0x402": cq.FlagRecv | cq.FlagMsg,
		"RECV|0x100000000000000": cq.FlagRecv | 1<<56, "redelivered": cq.FlagRedelivered,
	} {
		got, err := inspect.ParseFlags(text)
		if err != nil || got != want {
			t.Errorf("%q: %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"SENT", "SEND|", "-1", "0xg", "SEND|nope"} {
		if f, err := inspect.ParseFlags(text); text != "SEND|" {
			refused(t, text, err)
		} else if err != nil || f != cq.FlagSend {
			t.Errorf("%q: %v, %v", text, f, err)
		}
	}
	// What String prints is read again, whatever the bits.
	for bit := range 64 {
		f := cq.Flags(1) << bit
		if got, err := inspect.ParseFlags((f | cq.FlagMsg).String()); err != nil || got != f|cq.FlagMsg {
			t.Errorf("bit %d: %v, %v", bit, got, err)
		}
		if names := inspect.FlagNames(f); len(names) > 1 || len(names) == 1 && names[0] != f.String() {
			t.Errorf("bit %d: names %v", bit, names)
		}
	}
}

func TestParseEvent(t *testing.T) {
	for text, want := range map[string]cq.EventKind{"notify": cq.EventNotify,
		"FI_CONNREQ": cq.EventConnReq, "join_complete": cq.EventJoinComplete,
		"peer_death": cq.EventPeerDeath, "peer_new": cq.EventPeerNew, "user": cq.EventUser,
		"USER+0x10": cq.EventUser + 16, "99": 99} {
		if got, err := inspect.ParseEvent(text); err != nil || got != want {
			t.Errorf("%q: %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "nothing", "user+", "user+4294967295", "4294967296", "-1"} {
		_, err := inspect.ParseEvent(text)
		refused(t, text, err)
	}
	for _, k := range []cq.EventKind{0, 6, 7, cq.EventPeerDeath, cq.EventPeerNew, cq.EventUser,
		cq.EventUser + 9} {
		if got, err := inspect.ParseEvent(inspect.EventName(k)); err != nil || got != k {
			t.Errorf("%v is %q, which is %v, %v", k, inspect.EventName(k), got, err)
		}
	}
}

func TestParseFID(t *testing.T) {
	for text, want := range map[string]cq.FID{
		"queue:7":        {Kind: cq.FIDQueue, ID: 7},
		"Endpoint:0x7:2": {Kind: cq.FIDEndpoint, ID: 7, Generation: 2},
		"99:1:1":         {Kind: 99, ID: 1, Generation: 1},
	} {
		if got, err := inspect.ParseFID(text); err != nil || got != want {
			t.Errorf("%q: %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "queue", "queue:x", "nope:1", "queue:1:y", "queue:1:1:1"} {
		_, err := inspect.ParseFID(text)
		refused(t, text, err)
	}
}

func TestErrnoNames(t *testing.T) {
	for text, want := range map[string]cq.Errno{
		"ETRUNC": cq.ETrunc, "fi_eoverrun": cq.EOverrun, "EIO": cq.Errno(syscall.EIO),
		"EFIREWALLADDR": cq.EFirewallAddr, "5": 5, "0x109": cq.ETrunc, "100000": 100000,
	} {
		got, err := inspect.ParseErrno(text)
		if err != nil || got != want {
			t.Errorf("%q: %d, %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "0", "-5", "ENOPE", "4294967296"} {
		_, err := inspect.ParseErrno(text)
		refused(t, text, err)
	}
	for e := cq.Errno(-1); e < cq.EFirewallAddr+2; e++ {
		if name := inspect.ErrnoName(e); name != "" {
			if got, err := inspect.ParseErrno(name); err != nil || inspect.ErrnoName(got) != name {
				t.Errorf("%d is %s, which is %d, %v", e, name, got, err)
			}
		} else if e >= cq.EOther && e <= cq.EFirewallAddr {
			t.Errorf("%d has no name", e)
		}
	}
}
