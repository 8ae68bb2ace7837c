package device_test

import (
	"context"
	"errors"
	"os"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/xdp/device"
)

// limitFor returns the limit of open files with which a process can open so many more, and how many
// it has.
func limitFor(t testing.TB, pid, more int) (limit uint64, has int) {
	t.Helper()
	fds, err := os.ReadDir("/proc/" + strconv.Itoa(pid) + "/fd")
	must(t, err)
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
	pid := server.cmd.Process.Pid
	var had unix.Rlimit
	must(t, unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &had))
	// One that was served first: what the server opens for all of them it has then.
	first, err := device.Dial(t.Context(), r.path, device.Request{})
	must(t, err)
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
	server.end()
}

// TestAcceptOutOfFiles: a server that cannot accept says so a few times and not each time that it
// tries, and serves who waits once it can.
func TestAcceptOutOfFiles(t *testing.T) {
	shmtest.Conforms(t)
	r := newRig(t, device.Config{})
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(fd)
	var had unix.Rlimit
	must(t, unix.Prlimit(0, unix.RLIMIT_NOFILE, nil, &had))
	var taken []int // all that there may be
	defer func() {
		for _, fd := range taken {
			_ = unix.Close(fd)
		}
	}()
	limit, _ := limitFor(t, os.Getpid(), 5)
	must(t, unix.Prlimit(0, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: limit, Max: had.Max}, nil))
	for {
		one, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			break
		}
		taken = append(taken, one)
	}
	restore := func() error { return unix.Prlimit(0, unix.RLIMIT_NOFILE, &had, nil) }
	defer func() { _ = restore() }()
	begin := time.Now()
	err = unix.Connect(fd, &unix.SockaddrUnix{Name: r.path})
	var omitted *device.OmittedError
	told := 0
	await(t, "reports, and what was left out", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		told = slices.IndexFunc(r.errs, func(err error) bool { return errors.As(err, &omitted) })
		return told >= 0
	})
	must(t, errors.Join(err, restore()))
	// In windows in which the server had no time to fail more often nothing is left out.
	most := 8 * (1 + int(time.Since(begin)/time.Second))
	if told > most || omitted.Count < 1 || !errors.Is(omitted, syscall.EMFILE) {
		t.Errorf("%d reports, of which %d may be told, then: %v", told, most, omitted)
	}
	must(t, r.dial(device.Request{}).Close())
}
