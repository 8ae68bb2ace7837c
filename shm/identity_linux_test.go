package shm

import (
	"errors"
	"os"
	"strconv"
	"syscall"
	"testing"

	"github.com/shmring/shmring/internal/shmtest"
)

func TestProcessAlive(t *testing.T) {
	me := Self()
	if me.PID != os.Getpid() || me.PIDNS == 0 || me.StartTicks == 0 || me.BootID.IsZero() {
		t.Fatalf("self: %+v", me)
	}
	check := func(what string, w Owner, alive, known bool) {
		t.Helper()
		if a, k := ProcessAlive(w); a != alive || k != known {
			t.Errorf("%s: alive %v, known %v", what, a, k)
		}
	}
	check("self", me, true, true)
	other := me
	other.StartTicks++
	check("same PID, started later", other, false, true)
	other = me
	other.BootID[0]++
	check("another boot", other, false, true)
	other = me
	other.PIDNS++
	check("another PID namespace", other, false, false)
	other = me
	other.PIDNS = 0
	check("unknown PID namespace", other, false, false)

	c := startChild(t, "sleeper")
	st, ok := readStat("/proc/" + strconv.Itoa(c.Process.Pid) + "/stat")
	if !ok {
		t.Fatal("no stat")
	}
	peer := me
	peer.PID, peer.StartTicks = c.Process.Pid, st.startTicks
	check("child", peer, true, true)
	if err := c.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "zombie is dead", func() bool {
		alive, known := ProcessAlive(peer)
		return known && !alive
	})
	c.kill()
	check("reaped child", peer, false, true)
}

// childOtherNS runs in a PID namespace of its own, where it is process 1.
func childOtherNS() {
	o, err := childDir().Open(os.Getenv(envObject), ReadWrite)
	must(err)
	life, err := o.Life()
	must(err)
	say("%v", life)
	_, _ = os.Stdin.Read(make([]byte, 1))
	life, err = o.Life()
	must(err)
	say("%v", life)
	say("claim %v", o.Claim(nil))
	say("watch unsupported %v",
		errors.Is(second(FollowOwner(Owner{PID: 1, PIDNS: 1}, func() {})), errors.ErrUnsupported))
	childSleep()
}

func TestOtherPIDNamespace(t *testing.T) {
	d := openTestDir(t)
	forget(t, d, "a")
	owner := startChild(t, "owner", envObject+"=a")
	owner.line(t)
	cmd := shmtest.Child(t, "otherns", envObject+"=a")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	c := start(t, cmd, "pidns")
	if got := c.line(t); got != "alive" {
		t.Fatal(got)
	}
	owner.kill()
	if _, err := c.in.Write([]byte{1}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"dead", "claim <nil>", "watch unsupported true"} {
		if got := c.line(t); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	look := openObject(t, d, "a", Inspect)
	wantLife(t, look, Alive)
	c.kill()
	wantLife(t, look, Dead)
}
