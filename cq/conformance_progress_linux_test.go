package cq_test

import (
	"testing"

	"github.com/shmring/shmring/cq"
)

// TestConformanceCQFlagsOnly is FI_NOTIFY_FLAGS_ONLY.
func TestConformanceCQFlagsOnly(t *testing.T) {
	only := cq.Options{Size: 8, NotifyFlagsOnly: true}
	conform(t, "notify-flags-only", only, func(t *testing.T, r *rig) {
		const kept = cq.FlagRemoteRead | cq.FlagRemoteWrite | cq.FlagRemoteCQData | cq.FlagMultiRecv
		for _, f := range []cq.Flags{cq.FlagSend | cq.FlagMsg, cq.FlagRMA | cq.FlagRemoteRead,
			cq.FlagRMA | cq.FlagRemoteWrite | cq.FlagRemoteCQData,
			cq.FlagRecv | cq.FlagMsg | cq.FlagMultiRecv} {
			must(t, r.w.Post(&cq.Entry{Flags: f}))
			if got, err := readOne[cq.Msg](r.q); err != nil || got.Flags != f&kept {
				t.Errorf("%v became %v, %v", f, got.Flags, err)
			}
		}
	})
}

// TestConformanceCQProgress is FI_PROGRESS_MANUAL.
func TestConformanceCQProgress(t *testing.T) {
	conform(t, "count-zero-progresses", cq.Options{Size: 8}, func(t *testing.T, r *rig) {
		f, self := &fed{}, &fed{}
		unbind, err := r.q.Bind(f, true)
		must(t, err)
		defer unbind()
		unbindSelf, err := r.q.Bind(self, false)
		must(t, err)
		defer unbindSelf()
		if n, err := cq.Read[cq.Msg](r.q, nil); n != 0 || err != nil && err != cq.ErrWouldBlock {
			t.Errorf("%d, %v", n, err)
		}
		if f.progressed.Load() == 0 || self.progressed.Load() != 0 {
			t.Errorf("manual %d, automatic %d", f.progressed.Load(), self.progressed.Load())
		}
	})
}
