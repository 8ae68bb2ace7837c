package xdp_test

import (
	"testing"

	"github.com/shmring/shmring/internal/shmtest"
)

func TestMain(m *testing.M) {
	shmtest.Main(m, map[string]func(){
		"hold-queue":    holdQueue,
		"hold-only":     func() { holdAfter(0) },
		"send-and-hold": func() { holdAfter(3) },
		"memlock":       memlockChild,
		"read-umem":     readUMEMChild,
		"probe":         probeChild,
		"no-bpffs":      noBPFFSChild,
		"passed-socket": passedChild,
	})
}
