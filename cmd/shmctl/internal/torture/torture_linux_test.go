package torture

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/stage"
	"github.com/shmring/shmring/shm"
)

func TestMain(m *testing.M) {
	if ok, code := stage.Enter(os.Args[1:], Tool); ok {
		os.Exit(code)
	}
	shmtest.Main(m, confinedRoles)
}

// ledgerOf is the ledger of a test.
func ledgerOf(t *testing.T) *ledger {
	t.Helper()
	l := shmtest.Got(makeLedger(filepath.Join(t.TempDir(), ledgerFile))).Or(t)
	t.Cleanup(l.close)
	return l
}

func TestNothingIsLost(t *testing.T) {
	shmtest.Conforms(t)
	// By kills and not by time: a slow machine has to see as much. Whom they hit is chance. At steps
	// there are more, and a soak has thousands.
	kills := uint64(20)
	if crash.On && !testing.Short() {
		kills = 60
	}
	for seed := uint64(1); ; seed++ {
		r, err := Run(t.Context(), Options{Kills: kills, Duration: time.Minute, Seed: seed,
			Steps: crash.On})
		if err != nil {
			t.Fatalf("%v; report %+v", err, r)
		}
		if r.Kills > 0 && r.Read > 0 && r.Read >= r.Published &&
			r.Roles["reader"].Counts["adoptions"] >= 2 {
			return
		}
		if seed == 5 {
			t.Fatalf("not much of a torture: %+v", r)
		}
	}
}

// TestFindsWhatIsBroken has processes report to the ledger as those of a library would that breaks
// a promise, and expects the count that it belongs to. Readers of other users' queues forget their
// marks by the same lines as those of one user's.
func TestFindsWhatIsBroken(t *testing.T) {
	shmtest.Long(t)
	for _, c := range []struct {
		role, spoil string
		found       func(f *Found) uint64
	}{
		{"reader", spoilMark, func(f *Found) uint64 { return f.Duplicate }},
		{"reader", spoilSkip, func(f *Found) uint64 { return f.Lost }},
		{"endpoint", spoilSkip, func(f *Found) uint64 { return f.Hung }},
		{"endpoint", spoilText, func(f *Found) uint64 { return f.Unpublished }},
		{"endpoint", spoilEarly, func(f *Found) uint64 { return f.Broken }},
		{"endpoint", spoilAdd, func(f *Found) uint64 { return f.Lost }},
		{"endpoint", spoilSync, func(f *Found) uint64 { return f.Lost }},
		{eventsBetween.reader, spoilMark, func(f *Found) uint64 { return f.Duplicate }},
		{eventsBetween.reader, spoilSkip, func(f *Found) uint64 { return f.Lost }},
		{eventsBetween.reader, spoilText, func(f *Found) uint64 { return f.Unpublished }},
	} {
		t.Run(c.role+": "+c.spoil, func(t *testing.T) {
			shmtest.Require(t, "root", Lacks(c.role))
			o := Options{Duration: 5 * time.Minute, Seed: 2, spoil: c.spoil, Roles: []string{c.role}}
			if c.role == "endpoint" && c.spoil == spoilSkip { // else a slow machine is found first
				o.latest = time.Second
			}
			r, err := Run(t.Context(), o)
			if !errors.Is(err, ErrViolation) || c.found(&r.Roles[c.role].Found) == 0 ||
				len(r.Violations) == 0 {
				t.Errorf("%v; report %+v", err, r)
			}
		})
	}
}

// TestInterrupted: a run that is ended early tells what it found.
func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	enough := errors.New("seen enough")
	r, err := Run(ctx, Options{Duration: time.Hour, Seed: 4, Roles: []string{"reader", "writer"},
		Progress: func(_ time.Duration, r *Report) {
			if r.Read > 0 && r.Kills > 0 {
				cancel(enough)
			}
		}})
	if !errors.Is(err, enough) || errors.Is(err, ErrViolation) {
		t.Fatal(err)
	}
	if r == nil || !r.Interrupted || r.Kills == 0 || r.Read == 0 || r.DurationNs == 0 ||
		r.Machine.CPUs == 0 {
		t.Fatalf("report %+v", r)
	}
	var b strings.Builder
	r.Sheet().Print(&b)
	if !strings.Contains(b.String(), "\ninterrupted") {
		t.Error(b.String())
	}
}

// TestDeviceNothingIsLost: a device process and applications of other users, killed at any moment.
func TestDeviceNothingIsLost(t *testing.T) {
	shmtest.Conforms(t)
	shmtest.Long(t)
	shmtest.Require(t, "xdp", Lacks("device"))
	r, err := Run(t.Context(), Options{Kills: 60, Duration: time.Minute, Seed: 1, Steps: crash.On,
		Roles: []string{"device"}})
	if err != nil {
		t.Fatalf("%v; report %+v", err, r)
	}
	if r.Published == 0 || r.Read == 0 || r.Roles["device"].Kills == 0 {
		t.Errorf("not much of a torture: %+v", r)
	}
}

// TestLeaveSetFails: what goes wrong beside the end of a wait that was cancelled gets through.
func TestLeaveSetFails(t *testing.T) {
	ended, bad := fmt.Errorf("cq: wait: %w", context.Canceled), error(syscall.EBADMSG)
	for _, c := range []struct{ wait, leave, want error }{{context.Canceled, nil, nil},
		{ended, nil, nil}, {ended, bad, bad}, {bad, nil, bad}, {errors.Join(ended, bad), nil, bad},
		{context.DeadlineExceeded, nil, context.DeadlineExceeded}} {
		p, _ := heard(t, "reader")
		p.rnd = rand.New(rand.NewPCG(1, 2)) // it does not leave by itself
		r := &reading{checker: p.checks(), way: &way{open: func(*reading) (waiter, func() error, error) {
			return func(context.Context) ([]cq.Waitable, error) { return nil, c.wait },
				func() error { return c.leave }, nil
		}}}
		if err := r.work(t.Context()); !errors.Is(err, c.want) {
			t.Errorf("of %v and %v it leaves %v", c.wait, c.leave, err)
		}
	}
}

// TestDoubtStays: that a process died when it had added says nothing of what the one before in its
// place was going to add.
func TestDoubtStays(t *testing.T) {
	l := ledgerOf(t)
	s := &supervisor{ledger: l, frozen: &proc{}} // so that nobody is waited for
	p := &proc{index: 1, shot: true}
	mine := s.tally().place(p.index)
	die := func(adds uint64, added bool, want uint64) {
		t.Helper()
		startCounter(s, p)
		mine[countIntent].Add(adds)
		if p.shot = !added; added {
			p.step = crash.CountAdded
		}
		shmtest.Must(t, counterDied(s, p))
		if low := s.tally().added(); low != want {
			t.Errorf("%d are surely added, want %d", low, want)
		}
	}
	die(2, false, 0)
	die(1, true, 1)
	die(3, false, 1)
	die(4, true, 5)
	if high := s.tally().intended(); high != 10 {
		t.Errorf("%d are added at most, want 10", high)
	}
}

// TestExamine: an object that breaks an invariant after a death at a step is found, and none that
// does not; and the supervisor does little else but that.
func TestExamine(t *testing.T) {
	r := &role{name: "writer"}
	base := shmtest.Got(os.MkdirTemp(os.Getenv(shm.EnvDir), "examine")).Or(t)
	defer os.RemoveAll(base)
	s := &supervisor{base: base, roles: []*role{r}, report: newReport(Options{},
		[]*role{r}), found: map[string]Found{}}
	d := shmtest.Got(shm.OpenDir(s.base + "/" + queuesDir)).Or(t)
	defer d.Close()
	q := shmtest.Got(cq.Create(cq.Named(d, "q"), cq.Options{})).Or(t)
	defer q.Close()
	p := &proc{role: r, step: crash.AttachClaimed}
	if s.examine(p); s.report.Checked == 0 || s.found["writer"].Broken != 0 {
		t.Fatalf("%d objects checked: %v", s.report.Checked, s.report.Violations)
	}
	if !s.examined.After(time.Now()) {
		t.Error("it looks again at once")
	}
	f := shmtest.Got(os.OpenFile(d.Path()+"/q/reader", os.O_WRONLY, 0)).Or(t)
	defer f.Close()
	if _, err := f.WriteAt([]byte{0xff}, 4080); err != nil { // of the header, which says it is 0
		t.Fatal(err)
	}
	for _, quiet := range []*proc{{role: r}, {role: r, step: p.step, shot: true}} {
		s.examined = time.Time{}
		if s.examine(quiet); s.found["writer"].Broken != 0 {
			t.Errorf("it looked after %+v", quiet)
		}
	}
	if s.examine(p); s.found["writer"].Broken == 0 {
		t.Error("nothing was found")
	}
}

// TestProgressHoldsNobodyUp: while somebody is told how far a run is, what processes tell is heard,
// and changes nothing of what that one was given.
func TestProgressHoldsNobodyUp(t *testing.T) {
	l := ledgerOf(t)
	o := Options{Steps: true}
	roles, step := []*role{roleOf("event-reader")}, crash.EventPinned.String()
	s := &supervisor{ledger: l, roles: roles, report: newReport(o, roles), found: map[string]Found{}}
	told := false
	s.o.Progress = func(_ time.Duration, r *Report) {
		if told = true; !s.mu.TryLock() {
			t.Error("nobody else is heard")
			return
		}
		defer s.mu.Unlock()
		l.region("event-reader")[heldTimes].Add(1)
		s.count("event-reader", kindLost, 3, "lost")
		s.report.Steps[step]++
		if s.sum(); s.report.Lost != 3 || s.report.Roles["event-reader"].Counts["adoptions"] != 1 {
			t.Errorf("%+v", s.report)
		}
		if r.Lost != 0 || len(r.Violations) != 0 || r.Steps[step] != 0 ||
			r.Roles["event-reader"].Lost != 0 || r.Roles["event-reader"].Counts["adoptions"] != 0 {
			t.Errorf("what it was told is now %+v", r)
		}
	}
	if s.progress(time.Second); !told {
		t.Error("it was not told")
	}
}

func aiming(seed uint64, o Options) *supervisor {
	return &supervisor{o: o, rnd: rand.New(rand.NewPCG(seed, 0)),
		report: &Report{Outcome: NewOutcome(0, 0, []crash.Label{})}}
}

// TestAim: only at steps that lack, more often at those that lack more, and as the seed says.
func TestAim(t *testing.T) {
	r := roleOf("writer")
	before := map[string]uint64{}
	for _, l := range r.steps {
		before[l.String()] = 100
	}
	before[crash.Filled.String()], before[crash.Stamped.String()] = 10, 80
	s := aiming(1, Options{UntilSteps: 100, Before: before})
	s.roles = []*role{r}
	again := aiming(1, Options{UntilSteps: 100, Before: before})
	at := map[crash.Label]int{}
	for range 200 {
		l, n := s.aim(r)
		if m, k := again.aim(r); l != m || n != k {
			t.Fatalf("%v:%d, and with the same seed %v:%d", l, n, m, k)
		}
		at[l]++
	}
	if at[crash.Filled]+at[crash.Stamped] != 200 || at[crash.Stamped] == 0 ||
		at[crash.Filled] < 2*at[crash.Stamped] {
		t.Errorf("at %v", at)
	}
	s.report.Steps[crash.Filled.String()], s.report.Steps[crash.Stamped.String()] = 90, 20
	if l, _ := s.aim(r); l != crash.None {
		t.Errorf("at %v, which killed often enough", l)
	}
	for until, below := range map[uint64]int{100: 0, 101: 2} {
		if s.o.UntilSteps = until; len(s.below()) != below {
			t.Errorf("%v kill less often than %d times", s.below(), until)
		}
	}
	// Without a goal there is always something to aim at.
	if l, _ := aiming(1, Options{Before: before}).aim(r); l != crash.Filled && l != crash.Stamped {
		t.Errorf("at %v, while others killed less often", l)
	}
}

// TestPick: nobody is killed from outside who is on its way to a step, or is safe.
func TestPick(t *testing.T) {
	s := aiming(1, Options{Steps: true})
	r := &role{steps: []crash.Label{crash.Filled}}
	sent := &proc{role: r, step: crash.Filled, since: time.Now()}
	sent.spared = s.spare(sent, true)
	s.procs = []*proc{sent, {role: &role{safe: true}}, {role: r, empty: true}}
	if p := s.pick(s.canKill); p != nil {
		t.Errorf("picked %+v", p)
	}
	other := &proc{role: r, since: time.Now().Add(-time.Hour)}
	s.procs = append(s.procs, other)
	other.spared = s.spare(other, false)
	for range 20 {
		if p := s.pick(s.canKill); p != nil && p != other {
			t.Errorf("picked %+v", p)
		}
	}
	sent.since = other.since
	if !s.canKill(sent) {
		t.Error("one that does not get to its step lives for ever")
	}
}

// confinedRoles are those of a root that may not make namespaces or interfaces, as in a container.
var confinedRoles = map[string]func(){
	"confine": func() {
		runtime.LockOSThread() // what is dropped counts for the thread, and for what it executes
		for _, c := range []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_NET_ADMIN} {
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(3)
			}
		}
		_ = os.Setenv("SHMRING_TEST_ROLE", "confined")
		err := syscall.Exec("/proc/self/exe", os.Args, os.Environ())
		fmt.Fprintln(os.Stderr, err)
		os.Exit(3)
	},
	"confined": func() {
		lacks := map[string]string{}
		for _, name := range Roles() {
			if err := Lacks(name); err != nil {
				lacks[name] = err.Error()
			}
		}
		_ = json.NewEncoder(os.Stdout).Encode(lacks)
	},
}

// TestLacks: a machine on which there can be no device process is one without the roles that need
// one, and not one that breaks promises.
func TestLacks(t *testing.T) {
	shmtest.RequireRoot(t, "root", "only root may")
	out, err := shmtest.Child(t, "confine").Output()
	var lacks map[string]string
	if err != nil || json.Unmarshal(out, &lacks) != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, name := range Roles() {
		_, lacking := lacks[name]
		if want := strings.Contains(" device wire app app2 ", " "+name+" "); lacking != want {
			t.Errorf("%s: lacks %v, want %v: %s", name, lacking, want, lacks[name])
		}
	}
}

// TestAbsent: what the machine is short of for a moment is not what it does not have.
func TestAbsent(t *testing.T) {
	for err, want := range map[error]bool{unix.EPERM: true, unix.EACCES: true, unix.ENOSYS: true,
		unix.EOPNOTSUPP: true, unix.EAFNOSUPPORT: true, errors.ErrUnsupported: true,
		unix.EMFILE: false, unix.ENFILE: false, unix.ENOMEM: false, unix.EBUSY: false,
		unix.EAGAIN: false, unix.EINTR: false, unix.ENOBUFS: false, os.ErrDeadlineExceeded: false} {
		if got := absent(fmt.Errorf("try: %w", err)); (got != nil) != want {
			t.Errorf("%v: absent: %v, want %v", err, got, want)
		}
	}
}

// TestLacksNothing: where there can be one, all roles take part.
func TestLacksNothing(t *testing.T) {
	shmtest.RequireRoot(t, "root", "only root may")
	for _, name := range Roles() {
		if err := Lacks(name); err != nil {
			shmtest.Require(t, "xdp", fmt.Errorf("%s: %w", name, err))
		}
	}
}
