package cq_test

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
)

// TestConformanceCQVisibility is the target side of completion semantics: memory that a writer
// stored before it posted is seen by whoever read the entry.
func TestConformanceCQVisibility(t *testing.T) {
	t.Parallel()
	for name, every := range map[string]int{"payload-before-completion": 1, "earlier-entries-too": 5} {
		conform(t, name, cq.Options{Size: litmusSize, Spin: -1}, func(t *testing.T, r *rig) {
			litmus(t, r, every)
		})
	}
}

const (
	litmusSize  = 16
	litmusCount = 4_000
	litmusBytes = 192 // of payload for each entry: three lines
)

// litmus has a writer fill memory and post, and checks that memory for every entry that came. Only
// every so many-th payload has an entry of its own.
func litmus(t *testing.T, r *rig, every int) {
	path := filepath.Join(openTempDir(t), "payload")
	must(t, os.WriteFile(path, make([]byte, 2*litmusSize*every*litmusBytes), 0o600))
	must(t, os.Chmod(path, 0o666)) // another user's writer stores there
	a := LitmusArgs{Queue: r.address(), Path: path, Every: every}
	done, ended := make(chan struct{}), error(nil)
	var near *cq.Writer
	handed := func() {}
	if r.far {
		handed = r.hand(t)
	} else {
		near = r.attach(t).(*nearWriter).Writer
	}
	go func() {
		defer close(done)
		if r.far {
			var reply PostReply
			r.p.call(t, "Litmus", a, &reply)
			ended = reply.Err.err()
		} else {
			ended = runLitmus(near, a)
		}
	}()
	handed()
	defer func() {
		_ = r.q.Close() // should the writer still wait for room
		<-done
	}()
	payload := mapPayload(t, path)
	dst := make([]cq.Context, 7)
	for next := uint64(every - 1); next < litmusCount; {
		n, err := sread(r.q, dst, tooLong)
		must(t, err)
		for _, e := range dst[:n] {
			if e.Context != next {
				t.Fatalf("entry %d, want %d", e.Context, next)
			}
			for i := e.Context + 1 - uint64(every); i <= e.Context; i++ {
				for at, got := range words(payload, i) {
					if got != i {
						t.Fatalf("entry %d: word %d of payload %d is %d", e.Context, at, i, got)
					}
				}
			}
			next += uint64(every)
		}
	}
	<-done
	must(t, ended)
}

// LitmusArgs say what to post and where the payload lies.
type LitmusArgs struct {
	Queue, Path string
	Every       int
}

// Litmus is the writer's part, in the other process.
func (p *Peer) Litmus(a LitmusArgs, reply *PostReply) error {
	w, err := p.writer(a.Queue)
	if err == nil {
		err = runLitmus(w, a)
	}
	reply.Err = toWire(err)
	return nil
}

// runLitmus posts and closes the writer.
func runLitmus(w *cq.Writer, a LitmusArgs) error {
	defer w.Close()
	mem, err := openPayload(a.Path)
	if err != nil {
		return err
	}
	defer unix.Munmap(mem)
	for i := range uint64(litmusCount) {
		slot := payloadOf(mem, i)
		for at := 0; at < litmusBytes; at += 8 {
			binary.LittleEndian.PutUint64(slot[at:], i)
		}
		if (i+1)%uint64(a.Every) != 0 {
			continue
		}
		for err = w.Post(&cq.Entry{Context: i}); err == cq.ErrFull; err = w.Post(&cq.Entry{Context: i}) {
			runtime.Gosched()
		}
		if err != nil {
			return err
		}
		if i%499 == 0 {
			time.Sleep(100 * time.Microsecond) // the reader falls asleep
		}
	}
	return nil
}

func openPayload(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	return unix.Mmap(int(f.Fd()), 0, int(st.Size()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
}

func mapPayload(t *testing.T, path string) []byte {
	t.Helper()
	mem, err := openPayload(path)
	must(t, err)
	t.Cleanup(func() { must(t, unix.Munmap(mem)) })
	return mem
}

// payloadOf is what entry i brings. There is room for twice what the lane holds, so that nothing is
// overwritten that the reader still has to look at.
func payloadOf(mem []byte, i uint64) []byte {
	at := i % uint64(len(mem)/litmusBytes) * litmusBytes
	return mem[at : at+litmusBytes]
}

func words(mem []byte, i uint64) []uint64 {
	slot := payloadOf(mem, i)
	var out []uint64
	for at := 0; at < litmusBytes; at += 8 {
		out = append(out, binary.LittleEndian.Uint64(slot[at:]))
	}
	return out
}
