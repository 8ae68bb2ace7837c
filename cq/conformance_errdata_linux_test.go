package cq_test

import (
	"bytes"
	"slices"
	"syscall"
	"testing"

	"github.com/shmring/shmring/cq"
)

// failing is a queue of either kind, as far as error data goes.
type failing struct {
	most int // that a failure can carry
	post func(data []byte) error
	// read takes a failure with an entry that has had this memory since it was made, or with the
	// entry of the last read if room is nil.
	read func(room []byte) (data []byte, dataBytes int)
}

// TestConformanceCQErrData is the err_data of fi_cq_readerr: whatever is copied is the caller's for
// good.
func TestConformanceCQErrData(t *testing.T) {
	t.Parallel()
	for name, f := range errDataCases {
		conform(t, name, cq.Options{Size: 8}, func(t *testing.T, r *rig) {
			var e cq.ErrorEntry
			f(t, &failing{most: cq.ErrDataMaxBytes,
				post: func(data []byte) error {
					return r.w.PostError(&cq.ErrorEntry{Err: cq.EOther, ErrData: data})
				},
				read: func(room []byte) ([]byte, int) {
					if room != nil {
						e = cq.ErrorEntry{ErrData: room, ErrDataBytes: 99}
					}
					must(t, r.q.ReadErr(&e))
					wantErr(t, "entry", &e, cq.EOther)
					return e.ErrData, e.ErrDataBytes
				}})
		})
	}
	conform(t, "refused-keeps-its-room", cq.Options{Size: 1}, func(t *testing.T, r *rig) {
		long := &cq.ErrorEntry{Flags: cq.FlagSend, Err: cq.EOther,
			ErrData: make([]byte, cq.ErrDataMaxBytes+1)}
		must(t, r.w.Credit(1))
		wantErr(t, "credited", r.w.PostErrorCredited(long), cq.ErrInvalid, syscall.EINVAL)
		long.ErrData = long.ErrData[1:]
		must(t, r.w.PostErrorCredited(long))
		must(t, r.q.ReadErr(&cq.ErrorEntry{}))
		must(t, r.w.Bind(cq.FlagTransmit))
		must(t, r.w.Begin(cq.FlagSend))
		long.ErrData = make([]byte, cq.ErrDataMaxBytes+1)
		wantErr(t, "bound", r.w.Fail(long, cq.FlagSend), cq.ErrInvalid)
		long.ErrData = long.ErrData[1:]
		must(t, r.w.Fail(long, cq.FlagSend))
	})
}

// TestConformanceEQErrData is the err_data of fi_eq_readerr, for which the same holds.
func TestConformanceEQErrData(t *testing.T) {
	t.Parallel()
	for name, f := range errDataCases {
		conformEQ(t, name, cq.EventOptions{Size: 8}, func(t *testing.T, r *eqRig) {
			var e cq.EventError
			f(t, &failing{most: r.e.Options().DataMaxBytes,
				post: func(data []byte) error {
					_, err := r.w.WriteErr(&cq.EventError{Err: cq.EOther, ErrData: data})
					return err
				},
				read: func(room []byte) ([]byte, int) {
					if room != nil {
						e = cq.EventError{ErrData: room, ErrDataBytes: 99}
					}
					_, err := r.e.ReadErr(&e, 0)
					must(t, err)
					wantErr(t, "entry", &e, cq.EOther)
					return e.ErrData, e.ErrDataBytes
				}})
		})
	}
}

var errDataCases = map[string]func(t *testing.T, f *failing){
	"callers-memory": func(t *testing.T, f *failing) {
		must(t, f.post([]byte("first failure")))
		must(t, f.post([]byte("second")))
		memory := make([]byte, 8)
		first, n := f.read(memory[:0:5])
		second, m := f.read(make([]byte, 32)) // with other libraries the end of the first one's data
		if string(first) != "first" || n != 13 || string(memory) != "first\x00\x00\x00" {
			t.Errorf("room for 5: %q of %d, memory %q", first, n, memory)
		}
		if string(second) != "second" || m != 6 {
			t.Errorf("room for 32: %q of %d", second, m)
		}
	},
	"room-is-capacity": func(t *testing.T, f *failing) {
		for _, length := range []int{0, 3, 8} {
			must(t, f.post([]byte("failure")))
			if got, n := f.read(make([]byte, length, 8)); string(got) != "failure" || n != 7 {
				t.Errorf("length %d, capacity 8: %q of %d", length, got, n)
			}
		}
	},
	"used-again": func(t *testing.T, f *failing) {
		room := make([]byte, 16)
		for _, text := range []string{"first failure", "", "2", "third failure"} {
			must(t, f.post([]byte(text)))
			if got, n := f.read(room); string(got) != text || n != len(text) {
				t.Errorf("%q of %d, want %q", got, n, text)
			}
			room = nil
		}
	},
	"no-room": func(t *testing.T, f *failing) {
		must(t, f.post([]byte("why")))
		if got, n := f.read([]byte{}); len(got) != 0 || n != 3 {
			t.Errorf("%q of %d", got, n)
		}
	},
	"too-long-is-refused": func(t *testing.T, f *failing) {
		long := slices.Concat(bytes.Repeat([]byte{1}, f.most), []byte{2})
		wantErr(t, "one byte too many", f.post(long), cq.ErrInvalid, syscall.EINVAL)
		must(t, f.post(long[1:]))
		if got, n := f.read(make([]byte, 2*f.most)); !bytes.Equal(got, long[1:]) || n != f.most {
			t.Errorf("%x of %d, want %x", got, n, long[1:])
		}
	},
}
