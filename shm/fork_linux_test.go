package shm

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/shmtest"
)

// envLeaves says what a leaver gives back.
const envLeaves = "SHMRING_TEST_LEAVES"

func init() {
	forkRoles["splitter"] = childSplitter
	forkRoles["leaver"] = childLeaver
	forkRoles["elapsed"] = childElapsed
}

// childSplitter makes an object, and a copy of its process that has the lock too.
func childSplitter() {
	o, err := childDir().Create(os.Getenv(envObject), specFor(""), nil)
	must(err)
	pid, err := shmtest.Fork()
	must(err)
	say("ready %d and %d", o.Owner().PID, pid)
	childSleep()
}

// TestForkKeepsTheLock: a process that was forked without an exec has the lock of its parent. While
// it lives nobody takes the object over, and whoever wants to is told why; that the owner itself is
// dead is known all the same.
func TestForkKeepsTheLock(t *testing.T) {
	shmtest.Conforms(t)
	d := openTestDir(t)
	forget(t, d, "a")
	c := startChild(t, "splitter", envObject+"=a")
	var owner, heir int
	if _, err := fmt.Sscanf(c.line(t), "ready %d and %d", &owner, &heir); err != nil {
		t.Fatal(err)
	}
	end := func() { _ = syscall.Kill(heir, syscall.SIGKILL) }
	defer end()
	o := openObject(t, d, "a", ReadWrite)
	var busy *BusyError
	if err := o.Claim(nil); !errors.As(err, &busy) || busy.Gone {
		t.Errorf("while both live: %v", err)
	}
	_ = c.Process.Kill()
	_ = c.Wait() // no end of its output: the copy has that too
	if w, died, err := o.OwnerDied(); !died || err != nil || w.PID != owner {
		t.Errorf("the owner %d: %+v, %v, %v", owner, w, died, err)
	}
	wantLife(t, o, Alive)
	if err := o.Claim(nil); !errors.As(err, &busy) || !busy.Gone || busy.PID != owner ||
		!strings.Contains(err.Error(), "forked") {
		t.Errorf("while the copy lives: %v", err)
	}
	end()
	eventually(t, "the copy's death", func() bool { return o.Claim(nil) == nil })
}

// childLeaver takes a seat, or the lock, makes a copy of its process, and gives it back.
func childLeaver() {
	o, err := childDir().Open(os.Getenv(envObject), ReadWrite)
	must(err)
	var pid int
	if os.Getenv(envLeaves) == "seat" {
		s, err := o.Seats(make([]byte, 2*SeatBytes)).Take()
		must(err)
		pid, err = shmtest.Fork()
		must(err)
		s.Leave()
	} else {
		_ = o.Claim(func() (err error) {
			pid, err = shmtest.Fork()
			must(err)
			return errors.New("not now")
		})
	}
	say("left to %d", pid)
	childSleep()
}

// TestForkKeepsNoSeat: what a process has given back is not kept by a copy that it forked before.
func TestForkKeepsNoSeat(t *testing.T) {
	for _, kind := range []string{"seat", "refused claim"} {
		t.Run(kind, func(t *testing.T) {
			d := openTestDir(t)
			o := sharedObject(t, d, "a")
			c := startChild(t, "leaver", envObject+"=a", envLeaves+"="+kind)
			var heir int
			if _, err := fmt.Sscanf(c.line(t), "left to %d", &heir); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = syscall.Kill(heir, syscall.SIGKILL) }()
			if err := o.Claim(nil); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestLooksKeepNoLock: who looks at what may be garbage has it locked for the time of that look,
// and no longer, whatever programs this process starts meanwhile: until such a child calls exec it
// has what its parent has.
func TestLooksKeepNoLock(t *testing.T) {
	const rounds = 300
	d := socketTestDir(t)
	noErr(t, os.WriteFile(filepath.Join(d.Path(), "cut"), nil, 0o600))
	for i := range rounds {
		path := filepath.Join(d.Path(), strconv.Itoa(i))
		noErr(t, unix.Close(bindSocket(t, unix.SOCK_STREAM, path)))
		noErr(t, os.WriteFile(path+LockSuffix, nil, 0o600))
	}
	end := make(chan struct{})
	var forks sync.WaitGroup
	forks.Go(func() {
		for {
			select {
			case <-end:
				return
			default:
				_ = exec.CommandContext(t.Context(), "true").Run()
			}
		}
	})
	defer forks.Wait()
	defer close(end)
	for range 20 {
		if _, err := d.Abandoned("cut"); err != nil {
			t.Fatal(err)
		}
	}
	for i := range rounds {
		if err := d.RemoveUnbound(strconv.Itoa(i)); err != nil {
			t.Fatal(err)
		}
	}
}

// childElapsed makes an object in a time namespace.
func childElapsed() {
	o, err := childDir().Create(os.Getenv(envObject), specFor(""), nil)
	must(err)
	say("ready %d", o.Owner().StartTicks)
	childSleep()
}

// TestTimeNamespace: a process that counts its time otherwise is not taken for dead because its
// start time looks different.
func TestTimeNamespace(t *testing.T) {
	shmtest.Conforms(t)
	d := openTestDir(t)
	forget(t, d, "a")
	c := shmtest.Child(t, "elapsed", envObject+"=a")
	shmtest.Unshared(t, "timens", c, "--time", "--boottime", "1000")
	run := start(t, c, "timens")
	ticks, _ := strconv.Atoi(strings.TrimPrefix(run.line(t), "ready "))
	o := openObject(t, d, "a", ReadWrite)
	if w := o.Owner(); ticks != 0 && w.StartTicks != 0 {
		t.Errorf("it says that it started at %d", ticks)
	}
	if w, died, err := o.OwnerDied(); died || err != nil {
		t.Errorf("it is alive: %+v, %v", w, err)
	}
	if alive, known := ProcessAlive(o.Owner()); known && !alive {
		t.Error("it is taken for dead")
	}
	wantLife(t, o, Alive)
	run.kill()
	if _, died, err := o.OwnerDied(); !died || err != nil {
		t.Errorf("it is dead: %v", err)
	}
	if err := o.Claim(nil); err != nil {
		t.Error(err)
	}
}
