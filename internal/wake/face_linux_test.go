package wake

import (
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/eventfd"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/ring"
)

// newFace returns a face over an eventfd, and a FIFO if it is given one.
func newFace(t *testing.T, fifo int) *Face {
	t.Helper()
	f := shmtest.Got(NewFace(fifo)).Or(t)
	t.Cleanup(f.Close)
	return f
}

// fifoFace returns a face with a FIFO, and a descriptor to write to that.
func fifoFace(t *testing.T) (f *Face, write int) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "bell")
	shmtest.Must(t, unix.Mkfifo(path, 0o600))
	const flags = unix.O_NONBLOCK | unix.O_CLOEXEC
	both, err := unix.Open(path, unix.O_RDWR|flags, 0)
	shmtest.Must(t, err)
	f = newFace(t, both)
	if write, err = unix.Open(path, unix.O_WRONLY|flags, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { eventfd.Close(write) })
	return f, write
}

// userEpoll nests the face in an epoll descriptor of the user's own, as programs with an event
// loop do.
func userEpoll(t *testing.T, f *Face, events uint32) int {
	t.Helper()
	ep := shmtest.Got(unix.EpollCreate1(unix.EPOLL_CLOEXEC)).Or(t)
	t.Cleanup(func() { unix.Close(ep) })
	ev := unix.EpollEvent{Events: unix.EPOLLIN | events, Fd: 7}
	shmtest.Must(t, unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, f.FD(), &ev))
	return ep
}

// wakes reports whether an epoll_wait ends because of the face.
func wakes(t *testing.T, ep int, timeoutMs int) bool {
	t.Helper()
	var evs [4]unix.EpollEvent
	for {
		n, err := unix.EpollWait(ep, evs[:], timeoutMs)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n > 1 || n == 1 && evs[0].Fd != 7 {
			t.Fatal(n, err, evs)
		}
		return n == 1
	}
}

// dup is what a producer's Face function does in these tests: it gets a descriptor of its own.
func dup(fd int) func(*RingerConfig) {
	return func(c *RingerConfig) {
		c.Face = func(uint16) int {
			own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
			if err != nil {
				return -1
			}
			return own
		}
	}
}

// doors returns the two ways in which a producer rings a face.
func doors(t *testing.T, f func(t *testing.T, face *Face, door func(*RingerConfig))) {
	t.Run("eventfd", func(t *testing.T) {
		face := newFace(t, -1)
		f(t, face, dup(face.EventFD()))
	})
	t.Run("fifo", func(t *testing.T) {
		face, write := fifoFace(t)
		f(t, face, func(c *RingerConfig) {
			c.Face = func(uint16) int { return eventfd.Dup(write) }
		})
	})
}

func idle(t *testing.T, r *reader) {
	t.Helper()
	for {
		ready, signaled, err := r.TryWait()
		if err != nil || signaled {
			t.Fatal(signaled, err)
		}
		if !ready {
			return
		}
		r.read(laneSlots)
	}
}

// TryWait arms, one publish rings once, and what is there stays visible until the next TryWait.
func TestTryWaitLevel(t *testing.T) {
	doors(t, func(t *testing.T, face *Face, door func(*RingerConfig)) {
		q := heapQueue(t, 2)
		r := newReader(q, readerOptions{face: face})
		w := q.writer(1, ring.SeqCst, door)
		defer w.Close()
		ep := userEpoll(t, face, 0)
		w.put(1)
		if wakes(t, ep, 0) || w.Wakes() != 0 {
			t.Fatal("readable before it was armed")
		}
		if ready, _, err := r.TryWait(); !ready || err != nil {
			t.Fatal("TryWait does not see what is there", err)
		}
		r.read(laneSlots)
		idle(t, r)
		if wakes(t, ep, 0) {
			t.Fatal("readable with nothing there")
		}
		for range 3 {
			w.put(1)
		}
		if w.Wakes() != 1 {
			t.Fatalf("%d wakes for one arming", w.Wakes())
		}
		for range 3 {
			if !wakes(t, ep, 5000) {
				t.Fatal("not readable")
			}
		}
		if n := r.read(laneSlots); n != 3 {
			t.Fatal(n)
		}
		if !wakes(t, ep, 0) {
			t.Fatal("reading has reset the descriptor")
		}
		idle(t, r)
		if wakes(t, ep, 0) {
			t.Fatal("TryWait leaves it readable")
		}
		r.Kick()
		if !wakes(t, ep, 0) {
			t.Fatal("Kick does not reach the descriptor")
		}
	})
}

// What comes between TryWait and epoll_wait ends the wait, also for an edge-triggered user.
func TestTryWaitEdge(t *testing.T) {
	doors(t, func(t *testing.T, face *Face, door func(*RingerConfig)) {
		q := heapQueue(t, 1)
		r := newReader(q, readerOptions{face: face})
		w := q.writer(0, ring.SeqCst, door)
		defer w.Close()
		ep := userEpoll(t, face, unix.EPOLLET)
		for i := range 20 {
			idle(t, r)
			for wakes(t, ep, 0) {
			}
			done := make(chan int)
			if i%2 == 0 {
				w.put(1)
				close(done)
			} else {
				time.AfterFunc(time.Millisecond, func() { w.put(1); close(done) })
			}
			if !wakes(t, ep, 5000) {
				t.Fatal("the edge is lost in round", i)
			}
			<-done
			if wakes(t, ep, 0) {
				t.Fatal("one ring is two edges")
			}
			if n := r.read(laneSlots); n != 1 {
				t.Fatal(n)
			}
		}
	})
}

// A signal makes the descriptor readable; TryWait reports it once.
func TestTryWaitSignal(t *testing.T) {
	face := newFace(t, -1)
	q := heapQueue(t, 1)
	r := newReader(q, readerOptions{face: face, gen: 3})
	ep := userEpoll(t, face, 0)
	for name, signal := range map[string]func(){
		"own": r.Signal,
		"other": func() {
			Signal(q.arm, q.hints, func(gen uint16) int {
				if gen != 3 {
					t.Error("generation", gen)
				}
				return face.EventFD()
			}, nil)
		},
		"without a descriptor": func() { Signal(q.arm, q.hints, nil, nil); r.Kick() },
	} {
		idle(t, r)
		signal()
		if !wakes(t, ep, 5000) {
			t.Fatal(name, "not readable")
		}
		if _, signaled, err := r.TryWait(); !signaled || err != nil {
			t.Fatal(name, signaled, err)
		}
		idle(t, r)
		if wakes(t, ep, 0) {
			t.Fatal(name, "still readable")
		}
	}
}

// A producer asks for the descriptor once for each reader, and gives the old one back.
func TestRingerFollowsTheReader(t *testing.T) {
	q := heapQueue(t, 1)
	asked := []uint16{}
	face := newFace(t, -1)
	open := dup(face.EventFD())
	w := q.writer(0, ring.SeqCst, open, func(c *RingerConfig) {
		f := c.Face
		c.Face = func(gen uint16) int { asked = append(asked, gen); return f(gen) }
	})
	for _, gen := range []uint16{0, 0, 1, 1, 7} {
		r := newReader(q, readerOptions{face: face, gen: gen})
		idle(t, r)
		w.put(1)
		r.read(1)
	}
	if len(asked) != 3 || asked[0] != 0 || asked[1] != 1 || asked[2] != 7 {
		t.Errorf("asked for %v", asked)
	}
	old := w.faceFD
	w.Close()
	if w.faceFD != -1 { // any other might be somebody else's when the ringer is closed again
		t.Fatalf("descriptor %d after Close", w.faceFD)
	}
	w.Close()
	if _, err := unix.FcntlInt(uintptr(old), unix.F_GETFD, 0); err != unix.EBADF {
		t.Error("the descriptor is still open")
	}
}

// A descriptor that is full is readable: writing to it is no error and does not block. A peer that
// fills it faster than it is emptied costs a spurious look.
func TestFullDescriptor(t *testing.T) {
	face, fd := fifoFace(t)
	for range 20_000 {
		shmtest.Must(t, eventfd.Write(fd))
	}
	var full [8]byte
	for i := range full {
		full[i] = 0xff
	}
	full[0] = 0xfe // the largest count of an eventfd
	if _, err := unix.Write(face.EventFD(), full[:]); err != nil {
		t.Fatal(err)
	}
	shmtest.Must(t, eventfd.Write(face.EventFD()))
	ep := userEpoll(t, face, 0)
	for n := 0; wakes(t, ep, 0); n++ {
		if err := face.Reset(); err != nil || n > 10 {
			t.Fatal("does not get empty", err)
		}
	}
}

// TestListenLater: a pipe that the kernel does not take at first is behind the descriptor soon,
// though its writer rings no more.
func TestListenLater(t *testing.T) {
	t.Parallel()
	f := newFace(t, -1)
	f.later.First = time.Millisecond
	read, write, err := eventfd.NewPipe()
	shmtest.Must(t, err)
	t.Cleanup(func() { eventfd.Close(read); eventfd.Close(write) })
	var nothing unix.EpollEvent // in its way
	shmtest.Must(t, unix.EpollCtl(f.epoll, unix.EPOLL_CTL_ADD, read, &nothing))
	f.Listen(1, read)
	shmtest.Must(t, writeByte(write))
	ep := userEpoll(t, f, 0)
	if wakes(t, ep, 0) {
		t.Fatal("the pipe is there at once")
	}
	shmtest.Must(t, unix.EpollCtl(f.epoll, unix.EPOLL_CTL_DEL, read, nil))
	if !wakes(t, ep, 5000) {
		t.Error("the pipe does not come")
	}
}

func TestFaceErrors(t *testing.T) {
	file := shmtest.Got(unix.Open(t.TempDir(), unix.O_DIRECTORY|unix.O_CLOEXEC, 0)).Or(t)
	if _, err := NewFace(file); !errors.Is(err, unix.EPERM) {
		t.Error("what nobody can wait on: ", err)
	}
	if _, err := unix.FcntlInt(uintptr(file), unix.F_GETFD, 0); !errors.Is(err, unix.EBADF) {
		t.Error("a descriptor is left open that was taken over: ", err)
	}
	if err := eventfd.Write(-1); !errors.Is(err, unix.EBADF) {
		t.Error(err)
	}
	eventfd.Close(-1)
	f, _ := fifoFace(t)
	f.Close()
	f.Close()
	if f.FD() != -1 || f.EventFD() != -1 {
		t.Error("a closed face has descriptors")
	}
}

func init() {
	roles["without standard input"] = func() {
		f, err := closeAndFace()
		if err == nil && f.EventFD() != 0 {
			err = fmt.Errorf("the eventfd is %d", f.EventFD())
		}
		if err != nil {
			fmt.Println(err)
			return
		}
		f.Set()
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(f.FD()), Events: unix.POLLIN}}, 0)
		fmt.Println("readable:", n, err)
	}
}

func closeAndFace() (*Face, error) {
	if err := unix.Close(0); err != nil {
		return nil, err
	}
	return NewFace(-1)
}

// TestFaceWithoutStandardInput: descriptor 0 is one like any other.
func TestFaceWithoutStandardInput(t *testing.T) {
	out, err := shmtest.Child(t, "without standard input").Output()
	if want := "readable: 1 <nil>\n"; string(out) != want || err != nil {
		t.Errorf("%q, %v; want %q", out, err, want)
	}
}

// TestNoDescriptorMutesNobody: a producer that cannot reach the user's descriptor must not mark the
// arming as rung, or those who can would stay silent and the user asleep.
func TestNoDescriptorMutesNobody(t *testing.T) {
	face := newFace(t, -1)
	q := heapQueue(t, 2)
	r := newReader(q, readerOptions{face: face})
	without := q.writer(0, ring.SeqCst, func(c *RingerConfig) {
		c.Face = func(uint16) int { return -1 }
	})
	with := q.writer(1, ring.SeqCst, dup(face.EventFD()))
	defer with.Close()
	ep := userEpoll(t, face, 0)
	idle(t, r)
	without.put(1)
	if wakes(t, ep, 0) {
		t.Fatal("rung without a descriptor")
	}
	with.put(1)
	if !wakes(t, ep, 5000) {
		t.Fatal("muted by a producer that could not ring")
	}
	if n := r.read(laneSlots); n != 2 {
		t.Errorf("read %d entries of 2", n)
	}
}
