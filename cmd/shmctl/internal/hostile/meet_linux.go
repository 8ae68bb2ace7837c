package hostile

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cmd/shmctl/internal/wire"
	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp/device"
)

const (
	deviceSocket = "device-%d"
	talkers      = 4 // conversations of an attacker at a time
	holdMost     = 20
)

// talker is an attacker that speaks for itself, without the library.
type talker struct {
	c    *child
	rnd  *rand.Rand
	fds  []int
	held []*net.UnixConn // connections that are kept open, and silent
	last []byte          // what the other side said
	got  []int           // and the descriptors that came along
	lane int             // a memfd like that of a lane which was good once
}

// Messages of the protocols, of which attackers know what anybody can read.
var dialects = map[string]struct {
	network string
	magic   string
	bytes   int
	steps   int
	both    bool // sides say the same
}{
	"cq":     {"unix", "shmrdv\r\n", 64, 4, false},
	"device": {"unixpacket", "shmrdev\n", 256, 8, false},
	"fabric": {"unix", "shmfab\r\n", 16, 2, true},
}

// talk has several conversations at a time until the run ends. open gets a connection.
func (c *child) talk(dialect string, open func() (*net.UnixConn, error)) error {
	c.ready()
	var busy sync.WaitGroup
	for i := range talkers {
		t := &talker{c: c, rnd: c.split(), lane: -1}
		busy.Go(func() {
			t.fds = oddFiles()
			if dialect == "cq" {
				t.lane = c.formerLane()
			}
			for c.ctx.Err() == nil {
				conn, err := open()
				if err != nil {
					time.Sleep(200 * time.Microsecond)
					continue
				}
				t.converse(dialect, conn)
				t.leave(conn, i == 0 && c.Index == 1)
			}
		})
	}
	busy.Wait()
	return nil
}

// leave closes a connection, or keeps it open without a word; so many at most.
func (t *talker) leave(conn *net.UnixConn, hoards bool) {
	shm.CloseFDs(t.got)
	t.got, t.last = nil, nil
	most := 3
	if hoards {
		most = holdMost
	}
	if !hoards && t.rnd.IntN(8) > 0 {
		_ = conn.Close()
		return
	}
	if t.held = append(t.held, conn); len(t.held) > most {
		_ = t.held[0].Close()
		t.held = t.held[1:]
	}
}

// converse says a few things and listens in between, more or less as the protocol wants it.
func (t *talker) converse(dialect string, conn *net.UnixConn) {
	d := dialects[dialect]
	add(&t.c.did.Mutations, 1) // the connection itself
	if t.rnd.IntN(16) == 0 {
		return
	}
	if d.both { // nobody is met faster than that is possible
		if t.rnd.IntN(8) == 0 { // or hears from who has hung up
			m := t.message(d.magic, d.bytes, d.steps)
			_ = shm.SendFDs(conn, m[:1+t.rnd.IntN(len(m))])
			_ = conn.Close()
			return
		}
		t.listen(conn, 100*time.Millisecond)
		if t.rnd.IntN(4) > 0 {
			t.forge(conn, t.c.Index%2 == 1)
			return
		}
		t.last = make([]byte, d.bytes)
	}
	for range 1 + t.rnd.IntN(4) {
		m := t.message(d.magic, d.bytes, d.steps)
		fds := t.choose()
		_ = conn.SetWriteDeadline(time.Now().Add(5 * time.Millisecond))
		for _, part := range t.parts(m) {
			if shm.SendFDs(conn, part, fds...) != nil {
				return
			}
			add(&t.c.did.Mutations, 1)
			fds = nil
		}
		if t.rnd.IntN(3) > 0 {
			t.listen(conn, time.Duration(t.rnd.IntN(4000))*time.Microsecond)
		}
		if d.both {
			t.last = m
		}
	}
}

// parts is a message as a whole, in pieces, half of it, or twice.
func (t *talker) parts(m []byte) [][]byte {
	cut := 1 + t.rnd.IntN(len(m))
	switch k := t.rnd.IntN(8); {
	case k == 0:
		return [][]byte{m[:cut]}
	case k == 1 && cut < len(m):
		return [][]byte{m[:cut], m[cut:]}
	case k == 2:
		return [][]byte{m, m}
	case k == 3:
		return [][]byte{append(append([]byte{}, m...), m[:cut]...)}
	}
	return [][]byte{m}
}

// listen takes what the other side says next, if it comes soon.
func (t *talker) listen(conn *net.UnixConn, soon time.Duration) {
	_ = conn.SetReadDeadline(time.Now().Add(soon))
	buf := make([]byte, 512)
	n, fds, err := shm.RecvFDs(conn, buf, 8)
	if err != nil && !errors.Is(err, io.EOF) {
		return
	}
	t.last = buf[:n]
	t.got = append(t.got, fds...)
	if len(t.got) > 16 {
		shm.CloseFDs(t.got[:8])
		t.got = t.got[8:]
	}
}

// message makes one: right but for little, or anything.
func (t *talker) message(magic string, length, steps int) []byte {
	m := make([]byte, length)
	if t.rnd.IntN(16) == 0 {
		m = m[:1+t.rnd.IntN(length)]
		for i := range m {
			m[i] = byte(t.rnd.Uint32())
		}
		return m
	}
	copy(m, t.last) // uuid, row and generation of the other side
	copy(m, magic)
	le := binary.LittleEndian
	le.PutUint16(m[8:], 1)
	step := le.Uint16(m[10:]) + 1
	if len(t.last) < 16 || t.rnd.IntN(8) == 0 {
		step = uint16(t.rnd.IntN(steps + 2))
	}
	le.PutUint16(m[10:], step)
	le.PutUint32(m[12:], 0)
	if length == 64 {
		le.PutUint32(m[16:], []uint32{0, 0, 1, 2, 3, 5, 15, 1 << 9}[t.rnd.IntN(8)])
		le.PutUint32(m[48:], uint32(cq.CrossUser))
	} else if length == 256 && step == 1 {
		clear(m[16:])
		le.PutUint32(m[16:], uint32(t.rnd.IntN(64)))
		le.PutUint32(m[20:], uint32(t.rnd.IntN(64)))
	}
	for range t.rnd.IntN(3) {
		at := t.rnd.IntN(length / 4)
		values := []uint32{0, 1, ^uint32(0), 1 << 31, t.rnd.Uint32(), uint32(t.rnd.IntN(300))}
		le.PutUint32(m[4*at:], values[t.rnd.IntN(len(values))])
	}
	return m
}

// choose picks the descriptors that go with a message.
func (t *talker) choose() (fds []int) {
	switch t.rnd.IntN(6) {
	case 0, 1:
		return nil
	case 2:
		for range t.rnd.IntN(20) {
			fds = append(fds, t.fds[t.rnd.IntN(len(t.fds))])
		}
		return fds
	case 3:
		return append(fds, t.got...)
	case 4:
		if t.lane >= 0 {
			return []int{t.lane}
		}
	}
	for range 1 + t.rnd.IntN(2) {
		fds = append(fds, t.fds[t.rnd.IntN(len(t.fds))])
	}
	return fds
}

// oddFiles are descriptors that are no objects, or bad ones.
func oddFiles() (fds []int) {
	keep := func(fd int, err error) {
		if err == nil {
			fds = append(fds, fd)
		}
	}
	var pair [2]int
	if unix.Pipe2(pair[:], unix.O_CLOEXEC) == nil {
		fds = append(fds, pair[:]...)
	}
	if pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err == nil {
		fds = append(fds, pair[0])
	}
	keep(unix.Eventfd(0, unix.EFD_CLOEXEC))
	keep(unix.EpollCreate1(unix.EPOLL_CLOEXEC))
	keep(unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0))
	keep(unix.Open("/", unix.O_DIRECTORY|unix.O_CLOEXEC, 0))
	const all = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL | unix.F_SEAL_FUTURE_WRITE
	for _, size := range []int64{0, 1, 4095, 8192, 1 << 16, 1 << 40} {
		for _, seals := range []int{0, unix.F_SEAL_SHRINK, all} {
			keep(memfd(make([]byte, min(size, 1<<16)*int64(size&1)), size, seals))
		}
	}
	return fds
}

// memfd makes a file that begins with text. One without seals gets shorter a little later.
func memfd(text []byte, size int64, seals int) (int, error) {
	fd, err := unix.MemfdCreate("odd", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return -1, err
	}
	if len(text) > 0 {
		_, err = unix.Pwrite(fd, text, 0)
	}
	err = errors.Join(err, unix.Ftruncate(fd, size))
	if seals != 0 {
		_, sealErr := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
		err = errors.Join(err, sealErr)
	} else {
		time.AfterFunc(10*time.Millisecond, func() { _ = unix.Ftruncate(fd, 0) })
	}
	return fd, err
}

// formerLane attaches once as it should be, and keeps a copy of the lane that it had.
func (c *child) formerLane() int {
	if c.s.name != "meet-accept" {
		return -1
	}
	conn, err := c.dial(fmt.Sprintf(queueSocket, 0))
	if err != nil {
		return -1
	}
	defer conn.Close()
	ctx, cancel := limited(time.Second)
	defer cancel()
	w, err := cq.Attach(ctx, cq.Over(conn), c.writerOptions())
	if err != nil {
		return -1
	}
	defer w.Close()
	add(&c.did.Attaches, 1)
	fd := -1
	for _, a := range areas(c.Shm, "") {
		text := make([]byte, 0, 8*len(a.words))
		for i := range a.words {
			text = binary.LittleEndian.AppendUint64(text, a.words[i].Load())
		}
		const all = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL |
			unix.F_SEAL_FUTURE_WRITE
		fd, _ = memfd(text, int64(len(text)), all)
	}
	return fd
}

// attackTo connects to a socket of the victim's, of so many.
func attackTo(dialect, socket string, sockets int) func(*child) error {
	return func(c *child) error {
		return c.talk(dialect, func() (*net.UnixConn, error) {
			return c.line(dialects[dialect].network, fmt.Sprintf(socket, c.Index%sockets))
		})
	}
}

// attackFrom answers those who connect.
func attackFrom(dialect, socket string) func(*child) error {
	return func(c *child) error {
		l, err := wire.Listen(dialects[dialect].network, c.path(fmt.Sprintf(socket, c.Index)))
		if err != nil {
			return err
		}
		_ = l.SetDeadline(time.Now().Add(time.Hour))
		return c.talk(dialect, l.AcceptUnix)
	}
}

// dialOnce connects to the device process of an attacker.
func dialOnce(c *child, rnd *rand.Rand, i int) {
	defer c.watch("dial")()
	add(&c.did.Calls, 1)
	ctx, cancel := limited(20 * time.Millisecond)
	defer cancel()
	e, err := device.Dial(ctx, c.path(fmt.Sprintf(deviceSocket, i)), device.Request{Name: "victim",
		Ports: []uint16{5000}, Servers: []int{attackerUID}, Frames: 8 * rnd.IntN(2),
		NoReconnect: rnd.IntN(2) == 0})
	if err != nil {
		c.refusedBy("dial", err)
		return
	}
	c.assess("close", e.Close())
}
