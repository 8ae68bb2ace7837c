package shm

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/file"
	"github.com/shmring/shmring/internal/shmtest"
)

// forget removes an object that a test leaves behind without an owner.
func forget(t *testing.T, d *Dir, name string) {
	t.Cleanup(func() { os.Remove(filepath.Join(d.Path(), name)) })
}

func wantLife(t *testing.T, o *Object, want Life) {
	t.Helper()
	if got, err := o.Life(); got != want || err != nil {
		t.Fatalf("life is %v, %v; want %v", got, err, want)
	}
}

func TestKilledOwnerIsDead(t *testing.T) {
	d := openTestDir(t)
	forget(t, d, "a")
	c := startChild(t, "owner", envObject+"=a")
	c.Says(t, "ready "+strconv.Itoa(c.Process.Pid))
	look := openObject(t, d, "a", Inspect)
	o := openObject(t, d, "a", ReadWrite)
	wantLife(t, look, Alive)

	var busy *BusyError
	err := o.Claim(nil)
	if !errors.As(err, &busy) || busy.PID != c.Process.Pid || !errors.Is(err, syscall.EBUSY) {
		t.Fatalf("claim of a living owner's object: %v", err)
	}
	if err := o.Unlink(); err == nil {
		t.Fatal("unlinked without the lock")
	}

	c.Halt(t)
	wantLife(t, look, Alive)
	if err := o.Claim(nil); !errors.As(err, &busy) {
		t.Fatalf("claim of a stopped owner's object: %v", err)
	}

	c.Kill()
	wantLife(t, look, Dead)
	before := o.Generation()
	refused := errors.New("not this one")
	if err := o.Claim(func() error { return refused }); !errors.Is(err, refused) {
		t.Fatal(err)
	}
	wantLife(t, look, Dead)
	must(t, o.Claim(nil))
	if o.Generation() != before+1 || look.Generation() != before+1 {
		t.Errorf("generation %d after %d", o.Generation(), before)
	}
	if me := look.Owner(); me.PID != os.Getpid() || me.State != StateOwned {
		t.Errorf("owner %+v", me)
	}
	wantLife(t, look, Alive)
	if err := o.Claim(nil); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("second claim by the owner: %v", err)
	}
	must(t, o.Unlink())
}

// Between the moment when the lock becomes free and the one when the process is a zombie nobody may
// call the owner alive: no LockLost is ever seen when a process is killed.
func TestDyingIsNeverLockLost(t *testing.T) {
	d := openTestDir(t)
	for range 20 {
		c := startChild(t, "owner", envObject+"=a")
		c.Line(t)
		o, err := d.Open("a", ReadOnly)
		must(t, err)
		must(t, c.Process.Kill())
		life := Alive
		for life == Alive {
			if life, err = o.Life(); err != nil {
				t.Fatal(err)
			}
		}
		if life != Dead {
			t.Fatalf("a dying owner is %v", life)
		}
		c.Kill()
		o.Close()
		must(t, os.Remove(filepath.Join(d.Path(), "a")))
	}
}

func TestReleasedAndClosed(t *testing.T) {
	d := openTestDir(t)
	forget(t, d, "a")
	o := makeObject(t, d, "a")
	look := openObject(t, d, "a", Inspect)
	must(t, o.Release())
	wantLife(t, look, Released)
	if err := o.Release(); err == nil {
		t.Error("released twice")
	}
	must(t, o.Claim(nil))
	if o.Generation() != 2 {
		t.Errorf("generation %d", o.Generation())
	}
	must(t, o.Close())
	wantLife(t, look, Released)
	must(t, o.Close())
	for name, err := range map[string]error{"claim": o.Claim(nil), "release": o.Release(),
		"unlink": o.Unlink(), "seal": o.Seal(SealGrow), "life": second(o.Life()),
		"linked": second(o.Linked())} {
		if !errors.Is(err, os.ErrClosed) {
			t.Errorf("%s after Close: %v", name, err)
		}
	}
	if o.Generation() != 0 || o.Owner() != (Owner{}) {
		t.Error("a closed object has an owner")
	}
	again := openObject(t, d, "a", ReadWrite)
	must(t, again.Claim(nil))
	must(t, again.Unlink())
}

func second[T any](_ T, err error) error { return err }

func TestLostLockPoisons(t *testing.T) {
	d := openTestDir(t)
	forget(t, d, "a")
	c := startChild(t, "loser", envObject+"=a")
	c.Line(t)
	o := openObject(t, d, "a", ReadWrite)
	wantLife(t, o, LockLost)
	if err := o.Claim(nil); !errors.Is(err, ErrLockLost) || !errors.Is(err, syscall.ENOLCK) {
		t.Fatalf("claim: %v", err)
	}
	wantLife(t, o, LockLost)
	c.Kill()
	wantLife(t, o, Dead)
	must(t, o.Claim(nil))
}

// A process that the owner started has none of its descriptors, so the lock goes with the owner.
func TestLockIsNotInherited(t *testing.T) {
	d := openTestDir(t)
	forget(t, d, "a")
	c := startChild(t, "forker", envObject+"=a")
	c.Line(t)
	o := openObject(t, d, "a", ReadWrite)
	wantLife(t, o, Alive)
	// Not c.Kill, which also closes the pipe that keeps the grandchild alive.
	must(t, c.Process.Kill())
	eventually(t, "the owner's death", func() bool {
		life, err := o.Life()
		return err == nil && life == Dead
	})
	must(t, o.Claim(nil))
}

func TestOneClaimerWins(t *testing.T) {
	d := openTestDir(t)
	forget(t, d, "a")
	for range 5 {
		o := shmtest.Got(d.Create("a", specFor(""), nil)).Or(t)
		must(t, o.Release())
		const claimers = 4
		children := make([]*shmtest.Proc, claimers)
		for i := range children {
			children[i] = startChild(t, "claimer", envObject+"=a")
			children[i].Line(t)
		}
		for _, c := range children {
			if _, err := c.In.Write([]byte{1}); err != nil {
				t.Fatal(err)
			}
		}
		won := 0
		for _, c := range children {
			if got := c.Line(t); strings.HasPrefix(got, "yes 2") {
				won++
			} else if !strings.HasPrefix(got, "no shm: claim") {
				t.Error(got)
			}
		}
		if won != 1 || o.Generation() != 2 {
			t.Fatalf("%d claimers won, generation %d", won, o.Generation())
		}
		for _, c := range children {
			c.Kill()
		}
		must(t, o.Claim(nil))
		must(t, errors.Join(o.Unlink(), o.Close()))
	}
}

// A peer that holds a read lock must not make a dead object look alive.
func TestReadLockFakesNoLife(t *testing.T) {
	d := openTestDir(t)
	o := makeObject(t, d, "a")
	peer := openObject(t, d, "a", ReadOnly)
	must(t, o.Release())
	must(t, file.Lock(peer.FD(), file.Whole, false))
	look := openObject(t, d, "a", Inspect)
	wantLife(t, look, Released)
	must(t, peer.Close())
	must(t, o.Claim(nil))
}

func TestUnlinkRace(t *testing.T) {
	d := openTestDir(t)
	o := makeObject(t, d, "a")
	late := openObject(t, d, "a", ReadWrite)
	if linked, err := late.Linked(); !linked || err != nil {
		t.Fatal(linked, err)
	}
	must(t, errors.Join(o.Unlink(), o.Close()))
	if linked, err := late.Linked(); linked || err != nil {
		t.Fatal(linked, err)
	}
	if err := late.Claim(nil); !errors.Is(err, ErrStale) || !errors.Is(err, syscall.ESTALE) {
		t.Fatalf("claim of what was removed: %v", err)
	}

	first := makeObject(t, d, "b")
	must(t, os.Remove(filepath.Join(d.Path(), "b")))
	next := makeObject(t, d, "b")
	if err := first.Unlink(); !errors.Is(err, ErrStale) {
		t.Fatalf("unlinked somebody else's name: %v", err)
	}
	if linked, err := next.Linked(); !linked || err != nil {
		t.Fatal(linked, err)
	}
}

// What a stray close in the owner's own process does to it: the owner can tell, writes nothing that
// could be somebody else's by now, and closes no descriptor that is not its own.
func TestOwnerNoticesItsLostLock(t *testing.T) {
	t.Run("one descriptor", func(t *testing.T) { losesLock(t, func(*Object) {}) })
	t.Run("two descriptors", func(t *testing.T) { losesLock(t, func(o *Object) { o.FD() }) })
}

func losesLock(t *testing.T, before func(*Object)) {
	d := openTestDir(t)
	forget(t, d, "a")
	o := shmtest.Got(d.Create("a", specFor(""), nil)).Or(t)
	before(o)
	stray := o.lockFD
	must(t, syscall.Close(stray))
	must(t, unix.Dup3(int(os.Stdin.Fd()), stray, unix.O_CLOEXEC))
	defer sysClose(stray)
	wantLife(t, o, LockLost)
	if err := o.Unlink(); !errors.Is(err, ErrLockLost) {
		t.Errorf("unlink: %v", err)
	}
	look := openObject(t, d, "a", Inspect)
	if err := o.Close(); !errors.Is(err, ErrLockLost) {
		t.Errorf("close: %v", err)
	}
	if got := look.Owner(); got.State != StateOwned {
		t.Errorf("owner %+v", got)
	}
	if _, err := unix.FcntlInt(uintptr(stray), unix.F_GETFD, 0); err != nil {
		t.Errorf("the descriptor of somebody else was closed: %v", err)
	}
}

// TestOneDescriptor: an owner has the descriptor of its lock alone, until another one may be sent,
// and tells itself and others apart by it.
func TestOneDescriptor(t *testing.T) {
	d := openTestDir(t)
	o := makeObject(t, d, "a")
	has := func(what string, lock, other bool) {
		t.Helper()
		if (o.lockFD >= 0) != lock || (o.fd >= 0) != other {
			t.Errorf("%s: descriptors %d and %d", what, o.lockFD, o.fd)
		}
		linked, err := o.Linked()
		life, err2 := o.Life()
		want := Released
		if lock {
			want = Alive
		}
		if !linked || life != want || errors.Join(err, err2) != nil {
			t.Errorf("%s: linked %v, %v; %v, %v", what, linked, err, life, err2)
		}
	}
	has("made", true, false)
	other := openObject(t, d, "a", ReadWrite)
	if err := other.Claim(nil); !errors.As(err, new(*BusyError)) {
		t.Errorf("another one claims it: %v", err)
	}
	has("wanted by another", true, false)
	must(t, o.Release())
	has("released", false, true)
	must(t, o.Claim(nil))
	has("claimed", true, false)
	fd := o.FD()
	var st unix.Stat_t
	if must(t, unix.Fstat(fd, &st)); st.Ino != o.ino || fd == o.lockFD {
		t.Errorf("descriptor %d leads to another file, or is that of the lock", fd)
	}
	has("asked for a descriptor", true, true)
	must(t, errors.Join(o.Release(), o.Claim(nil)))
	if o.fd != fd {
		t.Errorf("the descriptor that was sent was %d, is %d", fd, o.fd)
	}
	o = shmtest.Got(CreateMemfd(specFor(""), nil)).Or(t)
	defer o.Close()
	if o.fd >= 0 || o.FD() < 0 {
		t.Errorf("without a name it has descriptor %d", o.fd)
	}
}

// TestSpareFD: an object without its descriptor is asked for its owner by its name, and says that
// of no other object.
func TestSpareFD(t *testing.T) {
	d := openTestDir(t)
	forget(t, d, "a")
	c := startChild(t, "owner", envObject+"=a")
	c.Line(t)
	look, kept := openObject(t, d, "a", ReadOnly), openObject(t, d, "a", ReadOnly)
	fd := look.FD()
	if look.SpareFD(); look.fd != fd {
		t.Error("a descriptor that was asked for is gone")
	}
	spared := func(want Life) {
		t.Helper()
		if kept.SpareFD(); kept.fd >= 0 {
			t.Errorf("descriptor %d is left", kept.fd)
		}
		_, linked := kept.Linked()
		_, shared := kept.ShareFD()
		if !errors.Is(linked, syscall.EBADF) || !errors.Is(shared, syscall.EBADF) {
			t.Error(linked, shared)
		}
		wantLife(t, kept, want)
		if linked, err := kept.Linked(); !linked || err != nil {
			t.Error(linked, err)
		}
	}
	spared(Alive)
	if _, died, err := kept.OwnerDied(); died || err != nil {
		t.Error(died, err)
	}
	c.Kill()
	spared(Dead)
	if owner, died, err := kept.OwnerDied(); !died || err != nil || owner.PID != c.Process.Pid {
		t.Error(owner, died, err)
	}
	must(t, os.Remove(filepath.Join(d.Path(), "a")))
	wantLife(t, kept, Dead)
	kept.SpareFD()
	if _, err := kept.Life(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("nobody has the name: %v", err)
	}
	next := makeObject(t, d, "a")
	if _, err := kept.Life(); !errors.Is(err, ErrStale) {
		t.Errorf("another has the name: %v", err)
	}
	if next.SpareFD(); next.lockFD < 0 {
		t.Error("an owner has given up its lock")
	}
	wantLife(t, next, Alive)
}

// TestDeaths: whoever takes an object over notes whom it found dead, and nothing of those who left.
func TestDeaths(t *testing.T) {
	shmtest.Conforms(t)
	d := openTestDir(t)
	forget(t, d, "a")
	c := startChild(t, "owner", envObject+"=a")
	c.Line(t)
	look := openObject(t, d, "a", Inspect)
	if _, died, err := look.OwnerDied(); died || err != nil || len(look.Deaths()) > 0 {
		t.Errorf("a living owner: %v, %v, %v", died, err, look.Deaths())
	}
	first := look.Owner()
	c.Kill()
	if o, died, err := look.OwnerDied(); !died || err != nil || o != first {
		t.Errorf("%v, %v, %v", died, err, o)
	}
	var pids []int
	for i := range deathSlots + 2 {
		if i%2 == 1 { // one that leaves comes between
			o := openObject(t, d, "a", ReadWrite)
			must(t, o.Claim(nil))
			o.Close()
		}
		pids = append(pids, look.Owner().PID)
		c := startChild(t, "claimer", envObject+"=a")
		c.Line(t)
		if _, err := c.In.Write([]byte("go\n")); err != nil {
			t.Fatal(err)
		}
		if got := c.Line(t); !strings.HasPrefix(got, "yes") {
			t.Fatal(got)
		}
		c.Kill()
	}
	o := openObject(t, d, "a", ReadWrite)
	must(t, o.Claim(nil))
	got := look.Deaths()
	if len(got) == 0 || len(got) > deathSlots {
		t.Fatal(got)
	}
	if last := got[len(got)-1]; last.Count != deathSlots+3 { // the first, and each claimer
		t.Errorf("the last of %d is counted as number %d", deathSlots+3, last.Count)
	}
	for i, d := range got {
		if d.PID == os.Getpid() || d.PIDNS != Self().PIDNS || d.StartTicks == 0 ||
			i > 0 && d.Generation <= got[i-1].Generation || d.Generation >= o.Generation() {
			t.Errorf("%d: %+v, of %v", i, d, pids)
		}
	}
	if _, died, err := look.OwnerDied(); died || err != nil {
		t.Errorf("ourselves: %v, %v", died, err)
	}
}

// TestBusyReleased: whoever has the lock of an object that was left is not its last owner, whose
// number may be that of a stranger.
func TestBusyReleased(t *testing.T) {
	d := openTestDir(t)
	made := shmtest.Have(d.Create("a", specFor(""), nil)).In(t)
	must(t, made.Release())
	holder, late := openObject(t, d, "a", ReadWrite), openObject(t, d, "a", ReadWrite)
	must(t, holder.Hold(nil))
	var busy *BusyError
	err := late.Claim(nil)
	if !errors.As(err, &busy) || !busy.Released || busy.Gone || busy.PID != 0 ||
		!errors.Is(err, syscall.EBUSY) || strings.Contains(err.Error(), "stop it") {
		t.Errorf("held by who removes it: %+v: %v", busy, err)
	}
	_, err = late.Seats(make([]byte, SeatBytes)).Take()
	if !errors.As(err, &busy) || !busy.Released || busy.PID != 0 {
		t.Errorf("no seat: %+v: %v", busy, err)
	}
	must(t, holder.Release())
	must(t, holder.Claim(nil))
	if err := late.Claim(nil); !errors.As(err, &busy) || busy.Released || busy.PID != os.Getpid() {
		t.Errorf("owned again: %+v: %v", busy, err)
	}
	must(t, holder.Unlink())
}

func TestProcessAlive(t *testing.T) {
	me := Self()
	if me.PID != os.Getpid() || me.PIDNS == 0 || me.StartTicks == 0 || me.BootID == (UUID{}) {
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
	check("another boot", other, false, false)
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
	must(t, c.Process.Kill())
	eventually(t, "zombie is dead", func() bool {
		alive, known := ProcessAlive(peer)
		return known && !alive
	})
	c.Kill()
	check("reaped child", peer, false, true)
}

// TestKnownSelf: what a process may not read of itself it reads again a second later, what it could
// not for want of a descriptor at once, and no more once it has all.
func TestKnownSelf(t *testing.T) {
	whole := Owner{PID: 7, StartTicks: 8, Program: 9, BootID: UUID{1}}
	part := Owner{PID: 7, BootID: UUID{1}}
	var k knownSelf
	for _, c := range []struct {
		why     string
		now     int64
		is      Owner
		starved bool
		want    Owner
	}{
		{"no descriptor", 1, part, true, part},
		{"nothing was read", 5, part, false, part},
		{"it was read a moment ago", 5 + selfAgainNs - 1, whole, false, part},
		{"a second has gone, and there is no descriptor", 5 + selfAgainNs, part, true, part},
		{"there is one", 6 + selfAgainNs, whole, false, whole},
		{"all is known", 5 + 9*selfAgainNs, part, false, whole},
	} {
		got := k.get(func() (Owner, bool) { return c.is, c.starved }, func() int64 { return c.now })
		if got != c.want {
			t.Errorf("%s: %+v, want %+v", c.why, got, c.want)
		}
	}
}

// TestThreadsAlive: a process whose first thread has ended is dead if all others have, and not if
// one cannot be looked at.
func TestThreadsAlive(t *testing.T) {
	stat := func(flags string) string {
		return "7 (x) R 1 1 1 0 0 " + flags + strings.Repeat(" 0", 40)
	}
	for _, c := range []struct {
		threads      []string // what their files say
		alive, known bool
	}{
		{[]string{stat("4"), stat("4")}, false, true},
		{[]string{stat("4"), stat("0")}, true, true},
		{[]string{stat("4"), ""}, false, false},
		{[]string{"", stat("0")}, true, true},
	} {
		dir := t.TempDir()
		for i, text := range c.threads {
			path := filepath.Join(dir, strconv.Itoa(i), "stat")
			must(t, os.MkdirAll(filepath.Dir(path), 0o700))
			if text == "" {
				must(t, os.Mkdir(path, 0o700)) // cannot be read
			} else {
				must(t, os.WriteFile(path, []byte(text), 0o600))
			}
		}
		if alive, known := threadsAlive(dir); alive != c.alive || known != c.known {
			t.Errorf("%q: alive %v, known %v", c.threads, alive, known)
		}
	}
	if alive, known := threadsAlive("/nowhere"); alive || known {
		t.Error("nothing is known of no threads")
	}
}

// childOtherNS runs in a PID namespace of its own, where it is process 1.
func childOtherNS() {
	o := shmtest.Needs(childDir().Open(os.Getenv(envObject), ReadWrite))
	life := shmtest.Needs(o.Life())
	say("%v", life)
	_, _ = os.Stdin.Read(make([]byte, 1))
	life = shmtest.Needs(o.Life())
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
	owner.Line(t)
	cmd := shmtest.Child(t, "otherns", envObject+"=a")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	c := shmtest.StartWith(t, cmd, "pidns")
	c.Says(t, "alive")
	owner.Kill()
	if _, err := c.In.Write([]byte{1}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"dead", "claim <nil>", "watch unsupported true"} {
		c.Says(t, want)
	}
	look := openObject(t, d, "a", Inspect)
	wantLife(t, look, Alive)
	c.Kill()
	wantLife(t, look, Dead)
}

// TestOtherBoot: a container may have an id of the boot of its own (systemd-nspawn). Its processes
// live as long as their locks are held.
func TestOtherBoot(t *testing.T) {
	d := openTestDir(t)
	forget(t, d, "a")
	id := filepath.Join(t.TempDir(), "boot_id")
	must(t, os.WriteFile(id, []byte(NewUUID().String()+"\n"), 0o600))
	cmd := shmtest.Child(t, "owner", envObject+"=a")
	shmtest.Unshared(t, "mount", cmd, "--mount", "sh", "-c",
		`mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"`, id)
	c := shmtest.Start(t, cmd)
	c.Line(t)
	look := openObject(t, d, "a", ReadWrite)
	if o, died, err := look.OwnerDied(); died || err != nil || o.BootID == Self().BootID {
		t.Errorf("the owner %+v died: %v, %v", o, died, err)
	}
	var busy *BusyError
	if err := look.Claim(nil); !errors.As(err, &busy) || busy.Gone {
		t.Errorf("claimed from one who lives: %v", err)
	}
	c.Kill()
	wantLife(t, look, Dead)
	must(t, look.Claim(nil))
	must(t, look.Unlink())
}
