package xdp

import (
	"strings"
	"testing"
)

// TestPrivilegeHint: what is missing is named, and what is not missing is not.
func TestPrivilegeHint(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		h         hostFindings
		has, lets string
	}{
		{hostFindings{missingCaps: []string{"CAP_BPF"}, memlockBytes: 1}, "lacks CAP_BPF:", "ulimit"},
		{hostFindings{memlockBytes: ^uint64(0)}, "user namespace", "lacks"},
		{hostFindings{memlockBytes: 1, memlockFree: true}, "user namespace", "ulimit"},
	} {
		got := privilegeHint(c.h)
		if !strings.Contains(got, c.has) || strings.Contains(got, c.lets) {
			t.Errorf("%+v: %q", c.h, got)
		}
	}
}
