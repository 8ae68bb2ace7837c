package hostile

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/shmring/shmring/cmd/shmctl/internal/wire"
	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/scratch"
	"github.com/shmring/shmring/internal/stage"
	"github.com/shmring/shmring/shm"
)

// surface is one thing that can be attacked.
type surface struct {
	name   string
	trust  cq.Trust
	weight int // of its share of the mutations; a message costs more than a store
	// queues are what the victim reads, each with a bystander who posts to it; 0 is one.
	queues int
	// beside is what it does beside that with the i-th attacker, again and again, from as many
	// goroutines for each as crowd says; 0 is one, and nil is nothing.
	beside func(c *child, rnd *rand.Rand, i int)
	crowd  int
	// What the processes do, each in its role: a victim reads its queues where it is nil.
	victim, attack func(*child) error
	// Who is honest comes so: as a writer of the kind of queue that the victim reads, if they are nil.
	honest, newcomer enters
	// kind is of the writers to the victim, and writes of those of the victim; nil is completions.
	kind, writes *kind
	prepare      func(*scene) (done func(), skip error)
	users        map[string]int // of roles that are not as usual
	visited      bool           // there is a newcomer
	// memfds is how names of those begin that others see, of all; the rest is the attacker's own
	// affair.
	memfds string
	// provokes tells whether the victim has counted what it must; nil is nothing. An attack that
	// nothing came of proves nothing.
	provokes func(*Surface) bool
	// uncounted is how many lanes of a queue between processes of one user may be there that its
	// statistics do not show: nothing was read from them, or an attacker wrote that over the row.
	uncounted int
}

// surfaces are attacked in this order.
var surfaces []*surface

func init() {
	others, user := cq.CrossUser, cq.SameUser
	blamed := func(s *Surface) bool { return s.Corrupt > 0 }
	gaveUp := func(s *Surface) bool { return s.Poisoned > 0 }
	cutOff := func(s *Surface) bool { return s.Corrupt > 0 && s.GivenUp > 0 }
	surfaces = []*surface{
		{name: "lane", trust: others, weight: 20, queues: ways, attack: attackLane, provokes: gaveUp},
		{name: "reader", trust: others, weight: 20, beside: postOnce, attack: attackReader,
			provokes: blamed},
		{name: "event-lane", trust: others, weight: 10, attack: attackLane, kind: events,
			provokes: gaveUp},
		{name: "event-reader", trust: others, weight: 10, beside: postOnce, attack: attackReader,
			writes: events, provokes: blamed},
		{name: "user-lane", trust: user, weight: 10, queues: ways, attack: attackLane,
			provokes: gaveUp, uncounted: 32},
		{name: "user-reader", trust: user, weight: 10, beside: postOnce, attack: attackReader,
			provokes: blamed},
		// Any value of a counter is a value: nothing is to be provoked.
		{name: "counter", trust: user, weight: 5, victim: victimCounter, attack: attackCounter},
		{name: "vector", trust: user, weight: 5, beside: lookAtVector, attack: attackVector,
			provokes: blamed},
		{name: "meet-accept", trust: others, weight: 1, provokes: blamed,
			attack: attackTo("cq", queueSocket, 1)},
		{name: "meet-attach", trust: others, weight: 1, beside: postOnce, crowd: 2,
			attack: attackFrom("cq", attackerSocket), provokes: blamed},
		{name: "meet-dial", trust: others, weight: 1, beside: dialOnce, crowd: 2,
			attack: attackFrom("device", deviceSocket), provokes: blamed},
		{name: "device-app", trust: others, weight: 10, prepare: prepareDevice, victim: victimServer,
			attack: attackServer, honest: (*child).enterApp, provokes: gaveUp},
		{name: "device-server", trust: others, weight: 10, prepare: prepareDevice,
			beside: useServer, crowd: 2, attack: attackApp, provokes: blamed,
			users: map[string]int{roleAttacker: 0, roleVictim: attackerUID}},
		{name: "device-meet", trust: others, weight: 1, prepare: prepareDevice, victim: victimServer,
			attack: attackTo("device", deviceSocket, 1), honest: (*child).enterApp, provokes: blamed},
		{name: "endpoint", trust: user, weight: 10, prepare: hasEndpoints, victim: victimEndpoint,
			attack: attackEndpoint, newcomer: (*child).newcomerEndpoint, provokes: cutOff,
			memfds: metName},
		{name: "endpoint-conn", trust: user, weight: 10, prepare: hasEndpoints, victim: victimConn,
			attack: attackConn, newcomer: (*child).newcomerConn, provokes: cutOff,
			memfds: metName},
		{name: "endpoint-meet", trust: others, weight: 1, prepare: hasEndpoints, victim: victimMet,
			attack: attackTo("fabric", metSocket, 2), newcomer: (*child).newcomerMet,
			provokes: cutOff, memfds: metName},
		{name: "endpoint-dial", trust: others, weight: 1, prepare: hasEndpoints, beside: dialMet,
			crowd: talkers, attack: attackFrom("fabric", metSocket), provokes: cutOff},
		{name: "endpoint-met", trust: others, weight: 10, prepare: hasEndpoints, victim: victimMet,
			attack: attackMet, newcomer: (*child).newcomerMet, provokes: cutOff,
			memfds: metName},
	}
	for _, s := range surfaces {
		s.queues, s.crowd = max(s.queues, 1), max(s.crowd, 1)
		s.kind, s.writes = cmp.Or(s.kind, completions), cmp.Or(s.writes, completions)
		if s.victim == nil {
			s.victim = victimReader
		}
		s.visited = s.border() || s.newcomer != nil
		if s.honest == nil {
			s.honest = (*child).enterWriter
		}
		if s.newcomer == nil {
			s.newcomer = s.honest
		}
	}
}

// border reports whether what is attacked is one between users. Else there is no newcomer to its
// queues: one of the same user can get a lane that an attacker had.
func (s *surface) border() bool { return s.trust == cq.CrossUser }

// user returns whose process plays a role.
func (s *surface) user(role string) int {
	if uid, ok := s.users[role]; ok || s.trust == cq.SameUser {
		return uid
	}
	return map[string]int{roleAttacker: attackerUID, roleHonest: honestUID,
		roleNewcomer: newcomerUID}[role]
}

const (
	roleVictim   = "victim"
	roleAttacker = "attacker"
	roleHonest   = "honest"
	roleNewcomer = "newcomer"
	attackers    = 2 // of a surface, at a time

	defaultMutations = 1_000_000
	// A surface is attacked for so long at least for a million mutations of the run, for a store
	// takes no time and a look does.
	timePerMillion = 600 * time.Millisecond
	shortestTime   = 100 * time.Millisecond
	// fewestCalls are made by the attacked side at least.
	fewestCalls = 200
	// longestTime ends an attack that does not get on, or provokes nothing: a violation each.
	longestTime = 3 * time.Minute
)

// scene is one surface under attack.
type scene struct {
	o      Options
	s      *surface
	report *Report
	result Surface
	dir    string // of sockets
	shm    string // of objects
	key    uint64
	rnd    *rand.Rand
	ends   wire.Ends
	files  []*os.File

	mu       sync.Mutex
	earlier  Brought // of attackers that have ended
	victim   *proc
	honest   []*proc
	hostiles []*proc
}

// Names returns the names of all surfaces.
func Names() (names []string) {
	for _, s := range surfaces {
		names = append(names, s.name)
	}
	return names
}

// Run attacks one surface after the other. The report is not nil if it came to an end; the error is
// ErrViolation if anything was found.
func Run(ctx context.Context, o Options) (*Report, error) {
	if err := scratch.Others(os.TempDir()); err != nil {
		return nil, fmt.Errorf("hostile: %w", err)
	}
	if o.Mutations == 0 {
		o.Mutations = defaultMutations
	}
	chosen, weights := []*surface{}, 0
	for _, s := range surfaces {
		if len(o.Surfaces) == 0 || slices.Contains(o.Surfaces, s.name) {
			chosen = append(chosen, s)
			weights += s.weight
		}
	}
	r := &Report{Seed: o.Seed, Surfaces: []Surface{}, Skipped: []string{}, Notes: []string{},
		Machine: stage.Here()}
	begin, rnd := time.Now(), rand.New(rand.NewPCG(o.Seed, 1))
	for i, s := range chosen {
		quota := o.Mutations * uint64(s.weight) / uint64(weights)
		if i == len(chosen)-1 { // what rounding and those that are skipped left
			quota = max(quota, o.Mutations-min(o.Mutations, r.Mutations))
		}
		sc := &scene{o: o, s: s, report: r, key: rnd.Uint64(), rnd: rnd,
			result: Surface{Name: s.name, Trust: s.trust.String()}}
		if err := sc.run(ctx, quota); err != nil {
			return nil, err
		}
		r.DurationNs = int64(time.Since(begin))
		if o.Progress != nil {
			o.Progress(r)
		}
	}
	if !r.Good() {
		return r, ErrViolation
	}
	return r, nil
}

// run attacks one surface until it has had quota mutations.
func (sc *scene) run(ctx context.Context, quota uint64) (err error) {
	var remove func()
	if sc.dir, remove, err = scratch.Make(os.TempDir(), toolName); err != nil {
		return err
	}
	defer remove()
	if err = os.Chmod(sc.dir, 0o777); err != nil {
		return err
	}
	d, err := shm.OpenDir("")
	if err != nil {
		return err
	}
	sc.shm, remove, err = scratch.Make(d.Path(), toolName)
	_ = d.Close()
	if err != nil {
		return err
	}
	defer remove()
	if sc.s.prepare != nil {
		done, why := sc.s.prepare(sc)
		if why != nil {
			sc.report.Skipped = append(sc.report.Skipped, fmt.Sprintf("%s: %v", sc.s.name, why))
			return nil
		}
		defer done()
	}
	defer sc.killAll()
	begin := time.Now()
	if err = sc.attack(ctx, quota); err != nil {
		return err
	}
	sc.end()
	sc.result.DurationNs = int64(time.Since(begin))
	sc.sum()
	sc.report.Surfaces = append(sc.report.Surfaces, sc.result)
	stage.Add(sc.report, &sc.result)
	return nil
}

// attack starts everybody, and attackers again that have ended, until it is enough.
func (sc *scene) attack(ctx context.Context, quota uint64) (err error) {
	if sc.victim, err = sc.start(roleVictim, 0); err != nil {
		return err
	}
	if !sc.await(sc.victim) {
		return nil
	}
	if begun, err := sc.startHonest(); err != nil || !begun {
		return err
	}
	for i := range attackers {
		p, err := sc.start(roleAttacker, i)
		if err != nil {
			return err
		}
		sc.hostiles = append(sc.hostiles, p)
	}
	begin, longest := time.Now(), longestTime
	if sc.o.spoil == spoilTame {
		longest = time.Second
	}
	least := max(shortestTime, time.Duration(float64(timePerMillion)*float64(sc.o.Mutations)/1e6))
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-sc.victim.Done():
			return nil
		case <-time.After(10 * time.Millisecond):
		}
		for i, p := range sc.hostiles {
			if p.Over() {
				if sc.hostiles[i], err = sc.next(p); err != nil {
					return err
				}
			}
		}
		sc.mu.Lock()
		all, did := sc.all(), sc.victim.did
		bites := sc.s.provokes == nil || sc.s.provokes(&did)
		came := all.Attaches > 0 || did.Refused > 0
		if sc.o.spoil != "" { // until it has been done
			came = came && did.Seen > 4*spoilAfter
		}
		sc.mu.Unlock()
		visited := !sc.s.visited || all.Visits >= fewestVisits || all.KeptOut > 0
		enough := all.Mutations >= quota && did.Calls >= fewestCalls && came && visited
		late := time.Since(begin) > longest
		if late && !enough {
			sc.result.Hangs++
			sc.note("%s: only %d mutations and %d calls in %v", sc.s.name, all.Mutations, did.Calls,
				longest)
		}
		if late && !visited {
			sc.result.KeptOut++
			sc.note("%s: only %d newcomers were let in", sc.s.name, all.Visits)
		}
		if late && !bites {
			sc.result.Toothless++
			sc.note("%s: %d mutations provoked nothing", sc.s.name, all.Mutations)
		}
		if late || enough && bites && time.Since(begin) >= least {
			return nil
		}
	}
}

// startHonest starts bystanders and, at a border between users, a newcomer. It reports false if one
// does not begin.
func (sc *scene) startHonest() (begun bool, err error) {
	roles := slices.Repeat([]string{roleHonest}, sc.s.queues)
	if sc.s.visited {
		roles = append(roles, roleNewcomer)
	}
	for i, role := range roles {
		p, err := sc.start(role, i)
		if err != nil {
			return false, err
		}
		if sc.honest = append(sc.honest, p); !sc.await(p) {
			return false, nil
		}
	}
	return true, nil
}

// next starts an attacker in the place of one that has ended.
func (sc *scene) next(p *proc) (*proc, error) {
	sc.mu.Lock()
	stage.Add(&sc.earlier, &p.did.Brought)
	p.did = Surface{}
	sc.mu.Unlock()
	if time.Since(p.started) < 20*time.Millisecond { // one that cannot even begin
		time.Sleep(10 * time.Millisecond)
	}
	return sc.start(roleAttacker, p.index)
}

// all is what was counted by all that there are and were. The caller has the lock.
func (sc *scene) all() Surface {
	all := sc.result
	stage.Add(&all, &sc.earlier)
	for _, p := range sc.hostiles { // what becomes of them is their business
		stage.Add(&all, &p.did.Brought)
	}
	for _, p := range append([]*proc{sc.victim}, sc.honest...) {
		stage.Add(&all, &p.did)
	}
	return all
}

// await waits until a child is ready.
func (sc *scene) await(p *proc) bool {
	select {
	case <-p.ready:
		return true
	case <-p.Done():
	case <-sc.victim.Done():
	case <-time.After(patience):
		sc.result.Hangs++
		sc.note("%s: the %s was not ready in %v", sc.s.name, p.role, patience)
	}
	return false
}

// end ends the attackers, then those who are honest, and then the victim, which has by then
// everything that it is to get.
func (sc *scene) end() {
	for _, p := range sc.hostiles {
		p.Kill()
	}
	for _, p := range sc.honest {
		if sc.victim.Over() { // nobody reads what it has to say
			p.Kill()
			continue
		}
		sc.finish(p)
	}
	if sc.victim != nil {
		sc.finish(sc.victim)
	}
}

// finish tells a child to end and assesses how it does.
func (sc *scene) finish(p *proc) {
	p.Dismiss()
	if !p.Wait(3 * patience) {
		p.Signal(syscall.SIGQUIT) // prints what it does
		if !p.Wait(patience) {
			p.Kill()
		}
		sc.result.Hangs++
	}
	code := p.State().ExitCode()
	text := p.stderr.String()
	switch {
	case code == 0:
		return
	case code == 4: // it has said that it hangs
	case strings.Contains(text, "unexpected fault address"), strings.Contains(text, "SIGBUS"),
		strings.Contains(text, "SIGSEGV") && !strings.Contains(text, "nil pointer"):
		sc.result.Wild++
	case strings.Contains(text, "panic:"), strings.Contains(text, "fatal error:"):
		sc.result.Panics++
	default:
		sc.result.Failed++
	}
	sc.note("%s: %s %d: %v\n%s", sc.s.name, p.role, p.index, p.State(),
		text[:min(len(text), 16_000)])
}

func (sc *scene) note(format string, args ...any) {
	sc.mu.Lock()
	defer sc.mu.Unlock()
	sc.report.Notes.Add(format, args...)
}

// sum completes the result.
func (sc *scene) sum() {
	if sc.victim == nil {
		return
	}
	sc.mu.Lock()
	defer sc.mu.Unlock()
	sc.result = sc.all()
	if r := &sc.result; r.Seen < r.Sent {
		r.BystanderLost += r.Sent - r.Seen
		sc.report.Notes.Add("%s: bystanders posted %d, and %d were read", r.Name, r.Sent, r.Seen)
	}
}

// proc is a child.
type proc struct {
	*stage.Process
	role    string
	index   int
	ready   chan struct{}
	did     Surface      // guarded by scene.mu
	stderr  bytes.Buffer // after the end
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
			p.did = r.Did
			if r.Note != "" && role != roleAttacker {
				sc.report.Notes.Add("%s", r.Note)
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
