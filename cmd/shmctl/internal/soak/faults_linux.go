package soak

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	faultEvery   = 2 * time.Second // the longest time between two
	freezeMost   = 800 * time.Millisecond
	signalsFor   = 300 * time.Millisecond
	starveFor    = 500 * time.Millisecond
	freezerGroup = "shmring-soak-"
)

// faults does things to the machine until it is stopped.
type faults struct {
	rnd     *rand.Rand
	freezer string // directory of the control group; empty without one
	done    Faults // by run
	end     chan struct{}
	all     sync.WaitGroup
}

// startFaults begins; skip is told what cannot be done here.
func startFaults(seed uint64, skip func(string)) *faults {
	f := &faults{rnd: rand.New(rand.NewPCG(seed, 1)), end: make(chan struct{})}
	var err error
	if f.freezer, err = makeFreezer(); err != nil {
		skip("freeze: " + err.Error())
	}
	f.all.Go(f.run)
	return f
}

// stop ends it and returns what was done.
func (f *faults) stop() Faults {
	close(f.end)
	f.all.Wait()
	if f.freezer != "" {
		_ = os.Remove(f.freezer)
	}
	return f.done
}

func (f *faults) run() {
	for {
		select {
		case <-f.end:
			return
		case <-time.After(time.Duration(f.rnd.Int64N(int64(faultEvery)))):
		}
		pid := f.victim()
		switch what := f.rnd.IntN(3); {
		case what == 0 && f.freezer != "" && pid > 0:
			f.freeze(pid)
		case what == 1 && pid > 0:
			f.storm(pid)
		case what == 2:
			f.starve()
		}
	}
}

// victim is one of this process's children, of which nobody else knows; 0 if there is none.
func (f *faults) victim() int {
	var pids []int
	tasks, _ := filepath.Glob("/proc/self/task/*/children")
	for _, path := range tasks {
		text, _ := os.ReadFile(path)
		for field := range strings.FieldsSeq(string(text)) {
			if pid, err := strconv.Atoi(field); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	if len(pids) == 0 {
		return 0
	}
	return pids[f.rnd.IntN(len(pids))]
}

// makeFreezer makes a control group of either version that can be frozen.
func makeFreezer() (dir string, err error) {
	for _, root := range []string{"/sys/fs/cgroup/freezer", "/sys/fs/cgroup/unified",
		"/sys/fs/cgroup"} {
		dir = filepath.Join(root, freezerGroup+strconv.Itoa(os.Getpid()))
		if err = os.Mkdir(dir, 0o700); err != nil {
			continue
		}
		if err = setFrozen(dir, false); err == nil {
			return dir, nil
		}
		_ = os.Remove(dir)
	}
	return "", err
}

// setFrozen writes the file that either version has.
func setFrozen(dir string, on bool) error {
	if _, err := os.Stat(dir + "/freezer.state"); err == nil {
		return os.WriteFile(dir+"/freezer.state", []byte(map[bool]string{true: "FROZEN",
			false: "THAWED"}[on]), 0)
	}
	return os.WriteFile(dir+"/cgroup.freeze", []byte(map[bool]string{true: "1", false: "0"}[on]), 0)
}

// freeze stops a process as only the kernel can see it, and gives it back to the group that it was
// in. It may be killed meanwhile, and dies when it thaws.
func (f *faults) freeze(pid int) {
	own := []byte(strconv.Itoa(pid))
	group, err := groupOf(pid, filepath.Dir(f.freezer))
	if err != nil || os.WriteFile(f.freezer+"/cgroup.procs", own, 0) != nil {
		return // it is gone
	}
	if setFrozen(f.freezer, true) == nil {
		f.done.Freezes++
		time.Sleep(time.Duration(f.rnd.Int64N(int64(freezeMost))))
	}
	_ = setFrozen(f.freezer, false)
	_ = os.WriteFile(group+"/cgroup.procs", own, 0)
}

// groupOf returns the directory of the control group that a process is in, of the hierarchy that is
// mounted at root: that of the freezer, or the one of version 2, which has number 0 and no name.
func groupOf(pid int, root string) (string, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return "", err
	}
	_, err = os.Stat(root + "/cgroup.controllers")
	unified := err == nil
	for line := range strings.Lines(string(text)) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(f) == 3 && (unified && f[0] == "0" ||
			!unified && slices.Contains(strings.Split(f[1], ","), "freezer")) {
			dir := filepath.Join(root, f[2])
			_, err = os.Stat(dir + "/cgroup.procs")
			return dir, err
		}
	}
	return "", fmt.Errorf("process %d is in no group below %s", pid, root)
}

// storm sends each thread of a process signals that the Go runtime takes for its own and ignores.
func (f *faults) storm(pid int) {
	for end := time.Now().Add(signalsFor); time.Now().Before(end); {
		threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		if err != nil {
			return
		}
		for _, e := range threads {
			if tid, err := strconv.Atoi(e.Name()); err == nil &&
				unix.Tgkill(pid, tid, unix.SIGURG) == nil {
				f.done.Signals++
			}
		}
		time.Sleep(20 * time.Microsecond)
	}
}

// starve takes the processors for itself, as far as the kernel lets it.
func (f *faults) starve() {
	f.done.Starves++
	var busy sync.WaitGroup
	end := time.Now().Add(starveFor)
	for range runtime.NumCPU() {
		busy.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			for time.Now().Before(end) {
				for range 10_000 {
					_ = end.Unix()
				}
			}
		})
	}
	busy.Wait()
}
