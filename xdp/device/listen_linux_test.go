package device_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/xdptest"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp/device"
)

// TestListen: a path belongs to who holds its lock. What a dead process left there is replaced, and
// nothing else is.
func TestListen(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	path := socketPath(t)
	l := shmtest.Got(device.Listen(path)).Or(t)
	info := shmtest.Got(os.Stat(path)).Or(t)
	if info.Mode().Perm() != 0o666 {
		t.Errorf("mode %v: everybody may connect", info.Mode())
	}
	if _, err := device.Listen(path); !errors.Is(err, device.ErrServing) ||
		!errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a second one: %v", err)
	}
	must(t, os.Remove(path+".lock")) // by somebody who tidies up
	if _, err := device.Listen(path); !errors.Is(err, device.ErrServing) {
		t.Errorf("a second one without the lock file: %v", err)
	}
	must(t, l.Close())
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after Close: %v", err)
	}
	dead, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	must(t, err)
	dead.SetUnlinkOnClose(false)
	must(t, dead.Close())
	l = shmtest.Got(device.Listen(path)).Or(t)
	c := shmtest.Got(net.Dial("unixpacket", path)).Or(t)
	must(t, errors.Join(c.Close(), l.Close(), os.WriteFile(path, []byte("precious"), 0o600)))
	if _, err := device.Listen(path); !errors.Is(err, os.ErrExist) {
		t.Errorf("over a file: %v", err)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "precious" {
		t.Errorf("the file: %q, %v", b, err)
	}
}

// TestListenMoved: a listener whose directory was moved removes its socket where it is, and nothing
// that stands at the path by now.
func TestListenMoved(t *testing.T) {
	t.Parallel()
	path := socketPath(t)
	dir := filepath.Join(filepath.Dir(path), "d")
	must(t, os.Mkdir(dir, 0o700))
	l := shmtest.Got(device.Listen(filepath.Join(dir, "s"))).Or(t)
	must(t, errors.Join(os.Rename(dir, dir+".moved"), os.Mkdir(dir, 0o700)))
	must(t, os.WriteFile(filepath.Join(dir, "s"), []byte("precious"), 0o600))
	must(t, l.Close())
	if b, err := os.ReadFile(filepath.Join(dir, "s")); err != nil || string(b) != "precious" {
		t.Errorf("the stranger's: %q, %v", b, err)
	}
	if _, err := os.Lstat(filepath.Join(dir+".moved", "s")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("ours: %v", err)
	}
}

// TestLateApplication: an application that was stopped in a meeting, and says the next thing when
// the server has hung up, hears why, and not only that it cannot say it.
func TestLateApplication(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	r := newRig(t, device.Config{})
	e := r.dial(device.Request{})
	r.server.SetHelloTimeout(300 * time.Millisecond)
	var before uint64
	late := func() {
		await(t, "the end of it", func() bool { return r.server.Stats().Refused > before })
		time.Sleep(20 * time.Millisecond) // it hangs up right after it has counted
	}
	for what, step := range map[string][2]func(){
		"memory": {late, func() {}}, "start": {func() {}, late},
	} {
		// Before it begins: a grant that is slow to be read may be the last word.
		before = r.server.Stats().Refused
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		err := e.Late(ctx, step[0], step[1])
		cancel()
		if !errors.Is(err, device.ErrSlow) || !errors.Is(err, syscall.ETIMEDOUT) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestDialsOn: a Dial goes on however many attempts are late, also when that is at the last step.
func TestDialsOn(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	r := newRig(t, device.Config{})
	path := socketPath(t)
	l := shmtest.Got(device.Listen(path)).Or(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	served := make(chan error, 1)
	go func() {
		for range 6 { // each takes two of the queue's eight lanes
			c, err := l.AcceptUnix()
			if err == nil {
				err = r.server.TooLate(ctx, c)
			}
			if err != nil {
				served <- err
				return
			}
		}
		served <- r.server.Serve(ctx, l.UnixListener)
	}()
	e, err := device.Dial(ctx, path, device.Request{Ports: []uint16{5000}})
	if err == nil {
		err = e.Close()
	}
	if err != nil {
		t.Error(err)
	}
	cancel()
	_ = l.SetDeadline(time.Unix(1, 0)) // for whoever was not dialed so often
	if err := <-served; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	must(t, l.Close())
}

// limitFor returns the limit of open files with which a process can open so many more, and how many
// it has.
func limitFor(t testing.TB, pid, more int) (limit uint64, has int) {
	t.Helper()
	fds := shmtest.Got(os.ReadDir("/proc/" + strconv.Itoa(pid) + "/fd")).Or(t)
	used := map[string]bool{}
	for _, fd := range fds {
		used[fd.Name()] = true
	}
	for ; used[strconv.Itoa(int(limit))] || more > 0; limit++ {
		if !used[strconv.Itoa(int(limit))] {
			more--
		}
	}
	return limit, len(fds)
}

// TestServerOutOfFiles: wherever in a meeting the server comes to the end of its descriptors, the
// application is told that, and everything is given back.
func TestServerOutOfFiles(t *testing.T) {
	shmtest.Conforms(t)
	r := newRemote(t)
	server := r.serve()
	pid := server.Process.Pid
	var had unix.Rlimit
	must(t, unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &had))
	// One that was served first: what the server opens for all of them it has then.
	first := shmtest.Got(device.Dial(t.Context(), r.path, device.Request{})).Or(t)
	_, with := limitFor(t, pid, 0)
	must(t, first.Close())
	before := 0
	await(t, "the end of the first", func() bool {
		_, before = limitFor(t, pid, 0)
		return before < with
	})
	for range 50 { // it closes several
		time.Sleep(time.Millisecond)
		_, n := limitFor(t, pid, 0)
		before = min(before, n)
	}
	failures := 0
	for room := 1; ; room++ {
		limit, _ := limitFor(t, pid, room)
		must(t, unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: limit, Max: had.Max}, nil))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		e, err := device.Dial(ctx, r.path, device.Request{})
		cancel()
		if err == nil {
			must(t, e.Close())
			break
		}
		failures++
		if !errors.Is(err, syscall.EMFILE) ||
			!errors.Is(err, device.ErrNoFiles) && !errors.Is(err, cq.ErrNoFiles) {
			t.Errorf("room for %d descriptors: %v", room, err)
		}
		await(t, "the last descriptor", func() bool { _, n := limitFor(t, pid, 0); return n <= before })
		if room == 100 {
			t.Fatal("that should be enough")
		}
	}
	if failures < 5 {
		t.Errorf("only %d meetings failed", failures)
	}
	terminate(t, server)
}

// TestAcceptOutOfFiles: a server that cannot accept says so a few times and not each time that it
// tries, and serves who waits once it can.
func TestAcceptOutOfFiles(t *testing.T) {
	shmtest.Conforms(t)
	r := newRig(t, device.Config{})
	fd := shmtest.Got(unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)).Or(t)
	defer unix.Close(fd)
	var taken []int // all that there may be
	defer func() {
		for _, fd := range taken {
			_ = unix.Close(fd)
		}
	}()
	limit, _ := limitFor(t, os.Getpid(), 5)
	restore := shmtest.LimitFiles(limit)
	defer restore()
	for {
		one, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			break
		}
		taken = append(taken, one)
	}
	begin := time.Now()
	err := unix.Connect(fd, &unix.SockaddrUnix{Name: r.path})
	var omitted error
	told := 0
	await(t, "reports, and what was left out", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		told = slices.IndexFunc(r.errs, func(err error) bool {
			return strings.Contains(err.Error(), "left out")
		})
		if told >= 0 {
			omitted = r.errs[told]
		}
		return told >= 0
	})
	restore()
	must(t, err)
	// In windows in which the server had no time to fail more often nothing is left out.
	most := 8 * (1 + int(time.Since(begin)/time.Second))
	if told > most || !errors.Is(omitted, syscall.EMFILE) {
		t.Errorf("%d reports, of which %d may be told, then: %v", told, most, omitted)
	}
	must(t, r.dial(device.Request{}).Close())
}

// ask sends datagrams to an application and waits for its answers.
func ask(t testing.TB, c *net.UDPConn, r *remote, port uint16, count int) {
	t.Helper()
	for i := range count {
		want := fmt.Sprintf("question %d to %d", i, port)
		for tries := 0; ; tries++ { // while a server starts, packets are lost
			if _, err := c.WriteToUDPAddrPort([]byte(want), r.target(port)); err != nil {
				t.Fatal(err)
			}
			err := answered(t, c, r, want)
			if err == nil {
				break
			}
			if tries == 300 {
				t.Fatalf("no answer to %q: %v", want, err)
			}
		}
	}
}

// answered waits for the answer that repeats want. Before it there may be late ones, of questions
// that were asked twice; each comes from whom it was asked.
func answered(t testing.TB, c *net.UDPConn, r *remote, want string) error {
	t.Helper()
	buf := make([]byte, 2048)
	must(t, c.SetReadDeadline(time.Now().Add(200*time.Millisecond)))
	for {
		n, from, err := c.ReadFromUDPAddrPort(buf)
		if err != nil {
			return err
		}
		var i int
		var asked uint16
		got := string(buf[:n])
		_, err = fmt.Sscanf(got, "question %d to %d", &i, &asked)
		if err != nil || from != r.target(asked) {
			t.Fatalf("got %q from %v", got, from)
		}
		if got == want {
			return nil
		}
	}
}

// TestUnprivilegedApplications: processes of a user without privilege send and receive through a
// device process of root, with a kernel socket at the other end of the wire, and go on with the
// next device process when the first one is killed.
func TestUnprivilegedApplications(t *testing.T) {
	shmtest.Conforms(t)
	r := newRemote(t)
	server := r.serve()
	a, b := startApp(t, r.path, 5001), startApp(t, r.path, 5002)
	peer := xdptest.UDP(t, r.pair.A, 6000)
	ask(t, peer, r, 5001, 200)
	ask(t, peer, r, 5002, 200)
	for range 3 {
		server.Kill()
		server = r.serve()
		ask(t, peer, r, 5001, 20)
		ask(t, peer, r, 5002, 20)
	}
	a.Kill()
	ask(t, peer, r, 5002, 20)
	b.Stop(t) // it leaves by itself
	c := startApp(t, r.path, 5002)
	ask(t, peer, r, 5002, 20)
	terminate(t, server)
	server = r.serve() // also after one that was not killed
	ask(t, peer, r, 5002, 20)
	c.Kill()
	terminate(t, server)
}

// TestSaysThatItCloses: whoever is connected to a server that ends is told that, however it ends
// and however far the two had come.
func TestSaysThatItCloses(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	ends := map[string]func(*rig){
		"by its context": func(r *rig) { r.cancel() },
		"by Close":       func(r *rig) { must(r.t, r.server.Close()) },
	}
	stages := map[string]func(*rig) *net.UnixConn{
		"greeted": func(r *rig) *net.UnixConn { c, _, _ := r.greeted(); return c },
		"served": func(r *rig) *net.UnixConn {
			c := r.admitted()
			_, _, err := shm.RecvFDs(c, make([]byte, 256), 0) // done
			must(r.t, err)
			return c
		},
	}
	for how, end := range ends {
		for stage, come := range stages {
			t.Run(stage+", ended "+how, func(t *testing.T) {
				r := newRig(t, device.Config{})
				c := come(r)
				end(r)
				buf := make([]byte, 256)
				n, _, err := shm.RecvFDs(c, buf, 0)
				must(t, err)
				no := device.Refused(buf[:n])
				if !errors.Is(no, device.ErrClosing) || !errors.Is(no, syscall.ESHUTDOWN) {
					t.Errorf("it is told %v", no)
				}
			})
		}
	}
}

// greeted is the connection of an application that has its grant, and says nothing more; and what
// is granted of payload memory.
func (r *rig) greeted() (c *net.UnixConn, sends, slotBytes int) {
	r.t.Helper()
	c = r.raw()
	must(r.t, shm.SendFDs(c, device.Hello()))
	buf := make([]byte, 256)
	_, fds, err := shm.RecvFDs(c, buf, 2)
	must(r.t, err)
	shm.CloseFDs(fds)
	if len(fds) != 2 {
		r.t.Fatalf("a grant with %d descriptors", len(fds))
	}
	sends, slotBytes, err = device.Granted(buf)
	must(r.t, err)
	return c, sends, slotBytes
}
