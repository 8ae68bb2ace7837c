package hostile

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"time"
)

// proc is a child.
type proc struct {
	role    string
	index   int
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	ready   chan struct{}
	done    chan struct{}
	counts  [countsOf]uint64 // guarded by scene.mu
	stderr  bytes.Buffer     // after done
	started time.Time
}

func (sc *scene) killAll() {
	for _, p := range slices.Concat([]*proc{sc.victim}, sc.honest, sc.hostiles) {
		if p != nil {
			p.kill()
		}
	}
}

func (p *proc) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

func over(p *proc) bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// start starts a child as the user that it has to be.
func (sc *scene) start(role string, index int) (*proc, error) {
	c := config{Surface: sc.s.name, Role: role, Index: index, Dir: sc.dir, Shm: sc.shm,
		Seed: sc.rnd.Uint64(), Ends: sc.ends, Spoil: sc.o.spoil}
	if role != roleAttacker {
		c.Key = sc.key
	}
	text, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	sc.result.Attackers += map[string]uint64{roleAttacker: 1}[role]
	p := &proc{role: role, index: index, ready: make(chan struct{}), done: make(chan struct{}),
		started: time.Now()}
	// It may lie in a directory that the other user may not enter.
	p.cmd = exec.Command("/proc/self/exe", ChildCommand, string(text))
	p.cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0") // a second each, for races
	p.cmd.ExtraFiles = sc.files
	if uid := sc.s.user(role); uid != 0 {
		p.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid),
			Gid: uint32(uid)}}
	}
	if role != roleAttacker { // what becomes of attackers is their business
		p.cmd.Stderr = &p.stderr
	}
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("hostile: start %s: %w", role, err)
	}
	go func() {
		defer close(p.done)
		sc.listen(p, out)
		_ = p.cmd.Wait()
		_ = p.stdin.Close()
	}()
	return p, nil
}

// listen takes what a child tells.
func (sc *scene) listen(p *proc, out io.Reader) {
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		var r report
		if json.Unmarshal(lines.Bytes(), &r) != nil {
			continue
		}
		sc.mu.Lock()
		p.counts = r.Counts
		if r.Note != "" && p.role != roleAttacker {
			sc.report.note("%s", r.Note)
		}
		sc.mu.Unlock()
		if r.Ready && !isClosed(p.ready) {
			close(p.ready)
		}
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
