package xdp_test

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/xdp"
)

// TestKickGating is the truth table of the system call that sends: made if there is something to
// send, unless the driver is awake and says so.
func TestKickGating(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	for _, zeroCopy := range []bool{false, true} {
		for _, noWakeup := range []bool{false, true} {
			for _, asks := range []bool{false, true} {
				for _, pending := range []bool{false, true} {
					name := fmt.Sprintf("zeroCopy=%v noWakeup=%v asks=%v pending=%v", zeroCopy, noWakeup,
						asks, pending)
					o := xdp.Options{NoNeedWakeup: noWakeup}
					if zeroCopy {
						o.Mode = xdp.BindZeroCopy
					}
					s, k := newSim(t, xdp.UMEMOptions{Frames: 16}, xdp.SimOptions{Options: o})
					k.NeedWakeup(asks, asks)
					if pending {
						post(t, s, numbered(0, 60), 0)
						s.Flush()
					}
					_, err := s.Kick()
					must(t, err)
					must(t, s.WakeFill())
					var want xdp.SyscallStats
					switch {
					case pending && (asks || noWakeup):
						want.Send = 1
					case pending:
						want.Suppressed = 1
					}
					if asks && !noWakeup {
						want.Receive = 1
					}
					if got := s.SyscallStats(); got != want {
						t.Errorf("%s: %+v, want %+v", name, got, want)
					}
				}
			}
		}
	}
}

// TestKickCounters: in copy mode every batch needs its call and none is suppressed; and looking for
// packets, filling and reaping make no call at all.
func TestKickCounters(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	eachXsk(t, xskConfig{}, func(t *testing.T, x *xsk) {
		const batches = 50
		for b := range batches {
			for i := range 8 {
				x.post(t, x.tx, b*8+i, 64, 0)
			}
			x.kick(t, x.tx)
			await(t, "a batch", func() bool { x.take(t, x.rx, always(64)); return x.seen == 8*(b+1) })
		}
		if s := x.tx.SyscallStats(); s.Send != batches || s.Suppressed != 0 || s.Receive != 0 {
			t.Errorf("sender: %+v", s)
		}
		must(t, x.rx.WakeFill())
		if s := x.rx.SyscallStats(); s.Send+s.Receive != 0 {
			t.Errorf("receiver: %+v", s)
		}
		x.finish(t)
	})
}

// TestBusyPollOptions: what is asked for is asked of the kernel and read back. That it has an
// effect cannot be shown on veth, which has no queue to poll.
func TestBusyPollOptions(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	b := xdp.BusyPoll{Prefer: true, TimeoutUs: 20, BudgetCount: 64}
	x := newXsk(t, xdp.AttachNative, xskConfig{rx: xdp.Options{BusyPoll: b}})
	if g := x.rx.Info().Granted; g.BusyPoll != b || g.BusyPollErr != nil || g.Mode != xdp.BindCopy ||
		!g.NeedWakeup || g.MultiBuffer || g.SendBufferBytes < 4<<20 {
		t.Errorf("%+v", g)
	}
	n, err := unix.GetsockoptInt(x.rx.FD(), unix.SOL_SOCKET, unix.SO_INCOMING_NAPI_ID)
	if err != nil || n != 0 {
		t.Errorf("NAPI id %d, %v: veth can be polled, so test that", n, err)
	}
	x.stream(t, x.tx, x.rx, 500, always(64))
	x.finish(t)
}

// TestNoNeedWakeup: without the flag every batch is kicked.
func TestNoNeedWakeup(t *testing.T) {
	t.Parallel()
	x := newXsk(t, xdp.AttachNative, xskConfig{tx: xdp.Options{NoNeedWakeup: true}})
	if x.tx.Info().Granted.NeedWakeup {
		t.Error("granted though not wanted")
	}
	x.stream(t, x.tx, x.rx, 500, always(64))
	x.finish(t)
}
