package capture_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/shmring/shmring/internal/capture"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// cut empties the file of the one capture that there is.
func cut(t *testing.T, d *shm.Dir) {
	t.Helper()
	names := captures(t, d)
	if len(names) != 1 {
		t.Fatalf("captures %v, want one", names)
	}
	must(t, os.Truncate(filepath.Join(d.Path(), names[0]), 0))
}

// TestReadOfACutCapture: a file that some process of the user cuts under the tool ends the capture
// with an error, which stays, and not the tool with a signal.
func TestReadOfACutCapture(t *testing.T) {
	shmtest.Conforms(t)
	for name, middle := range map[string]bool{"before": false, "between two packets": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil)
			s := r.start(t, capture.Options{})
			for range 3 {
				r.arrive(t, []byte("x"))
			}
			r.drive(t)
			r.giveBack(t)
			want := 0
			if before := s.Counts(); before.Seen != 3 {
				t.Fatalf("%+v before", before)
			}
			if middle {
				want = 1
			} else {
				cut(t, r.dir)
			}
			n, err := s.Read(8, func(p *capture.Packet) error {
				if middle {
					cut(t, r.dir)
				}
				if last := p.Bytes[len(p.Bytes)-1]; last != 'x' {
					t.Errorf("%q: the bytes are gone during the call", p.Bytes)
				}
				return nil
			})
			if n != want || !errors.Is(err, shm.ErrTruncated) {
				t.Errorf("%d packets, %v", n, err)
			}
			if n, err := s.Read(8, nil); n != 0 || !errors.Is(err, shm.ErrTruncated) {
				t.Errorf("again: %d packets, %v", n, err)
			}
			if c := s.Counts(); !s.Left() || c.Seen != 3 {
				t.Errorf("left %v, %+v", s.Left(), c)
			}
		})
	}
}

// TestTapOfACutCapture: nor does it end the program whose packets are captured, which goes on
// without, and takes the next capture.
func TestTapOfACutCapture(t *testing.T) {
	shmtest.Conforms(t)
	r := newRig(t, nil)
	s := r.start(t, capture.Options{})
	cut(t, r.dir)
	for range 3 {
		r.arrive(t, []byte("x"))
		r.drive(t)
		r.giveBack(t)
	}
	if st := r.Stats(); st.Received != 3 {
		t.Errorf("received %d of 3", st.Received)
	}
	must(t, s.Close())
	s = r.start(t, capture.Options{})
	r.arrive(t, []byte("y"))
	r.drive(t)
	r.giveBack(t)
	if got := readAll(t, s); len(got) != 1 {
		t.Errorf("%d packets in the next capture, want 1", len(got))
	}
}
