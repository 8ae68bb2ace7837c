package xdp

import (
	"strings"
	"testing"
)

// TestPrivilegeHint: what is missing is named, and what is not missing is not.
func TestPrivilegeHint(t *testing.T) {
	for _, c := range []struct {
		h         HostFindings
		has, lets string
	}{
		{HostFindings{MissingCaps: []string{"CAP_BPF"}, MemlockBytes: 1}, "lacks CAP_BPF:", "ulimit"},
		{HostFindings{MemlockBytes: ^uint64(0)}, "user namespace", "lacks"},
		{HostFindings{MemlockBytes: 1, MemlockFree: true}, "user namespace", "ulimit"},
	} {
		got := privilegeHint(c.h)
		if !strings.Contains(got, c.has) || strings.Contains(got, c.lets) {
			t.Errorf("%+v: %q", c.h, got)
		}
	}
}
