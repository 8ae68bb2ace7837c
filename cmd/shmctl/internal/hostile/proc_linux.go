package hostile

import (
	"bytes"
	"slices"
	"sync"
	"time"

	"github.com/shmring/shmring/internal/stage"
)

// proc is a child.
type proc struct {
	*stage.Process
	role    string
	index   int
	ready   chan struct{}
	counts  [countsOf]uint64 // guarded by scene.mu
	stderr  bytes.Buffer     // after the end
	started time.Time
}

func (sc *scene) killAll() {
	for _, p := range slices.Concat([]*proc{sc.victim}, sc.honest, sc.hostiles) {
		if p != nil {
			p.Kill()
		}
	}
}

// start starts a child as the user that it has to be.
func (sc *scene) start(role string, index int) (*proc, error) {
	c := config{Surface: sc.s.name, Index: index, Dir: sc.dir, Shm: sc.shm,
		Seed: sc.rnd.Uint64(), Ends: sc.ends, Spoil: sc.o.spoil}
	p := &proc{role: role, index: index, ready: make(chan struct{}), started: time.Now()}
	ready := sync.OnceFunc(func() { close(p.ready) })
	spec := stage.Spec{Tool: toolName, Role: role, Files: sc.files,
		User: uint32(sc.s.user(role)),
		Env:  []string{"GORACE=atexit_sleep_ms=0"}, // a second each, for races
		Hear: stage.JSON(func(r report) {
			sc.mu.Lock()
			defer sc.mu.Unlock()
			p.counts = r.Counts
			if r.Note != "" && role != roleAttacker {
				sc.report.note("%s", r.Note)
			}
			if r.Ready {
				ready()
			}
		})}
	if role == roleAttacker { // what becomes of them is their business
		sc.result.Attackers++
	} else {
		c.Key, spec.Stderr = sc.key, &p.stderr
	}
	spec.Script = c
	var err error
	p.Process, err = spec.Start()
	return p, err
}
