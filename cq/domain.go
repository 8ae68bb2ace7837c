package cq

import (
	"errors"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/shmring/shmring/doorbell"
	"github.com/shmring/shmring/internal/collect"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/shm"
)

// domain is this process's bell, and who uses it. It exists while there is a set, a channel, or a
// queue that was a member of one: producers may still have such a queue's bit in their hands.
type domain struct {
	mu    sync.Mutex
	users int
	obj   *shm.Object
	bell  *doorbell.Domain
	homes []*shm.Dir // directories in which the bell has a name
	taken [kind.DomainBits / 64]uint64
}

var processDomain domain

// acquire returns the process's bell for a set or channel, and makes it if there is none, with a
// name in d. d may be nil, for sets of queues without names: then the bell is in the default
// directory, so that it can have more names later, and without a name only where there is none.
func (p *domain) acquire(d *shm.Dir) (*doorbell.Domain, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.users == 0 {
		if err := p.create(d); err != nil {
			return nil, err
		}
	}
	p.users++
	return p.bell, nil
}

func (p *domain) create(d *shm.Dir) (err error) {
	spec := kind.BellSpec()
	spec.UUID = shm.NewUUID()
	if d == nil {
		if home, e := shm.OpenDir(""); e == nil {
			d = home
			defer home.Close()
		}
	}
	if d == nil {
		p.obj, err = sealed(spec, kind.LaneSeals, nil)
	} else {
		removeDeadBells(d)
		p.obj, err = d.Create(kind.BellName(spec.UUID), spec, nil)
	}
	if err != nil {
		return err
	}
	if d != nil {
		p.homes = append(p.homes, d.Dup())
	}
	arm, hints, err := kind.BellMemory(p.obj, false)
	if err != nil {
		return errors.Join(err, p.destroy())
	}
	p.bell = doorbell.NewDomain(arm, hints, kind.DomainBits)
	return nil
}

// release gives up what acquire or enroll took.
func (p *domain) release() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.users--
	if p.users > 0 {
		return nil
	}
	return p.destroy()
}

func (p *domain) destroy() error {
	var err error
	for _, d := range p.homes { // this takes no descriptor, which there may not be
		e := p.obj.UnlinkFrom(d, kind.BellName(p.obj.Header().UUID))
		if !errors.Is(e, fs.ErrNotExist) {
			err = errors.Join(err, e)
		}
		_ = d.Close()
	}
	err = errors.Join(err, p.obj.Close())
	p.obj, p.bell, p.homes = nil, nil, nil
	return err
}

// enroll gives a queue its bit, and tells its producers in words. home is the directory where they
// look for the bell, nil for a queue without a name.
func (p *domain) enroll(home *shm.Dir, words *kind.BellWords, generation uint64) (bit int,
	err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.users == 0 {
		if err = p.create(nil); err != nil {
			return -1, err
		}
		defer func() {
			if err != nil {
				_ = p.destroy()
			}
		}()
	}
	if err := p.nameIn(home); err != nil {
		return -1, err
	}
	if bit = p.takeBit(); bit < 0 {
		return -1, errNoBit()
	}
	p.users++
	high, low := kind.UuidWords(p.obj.Header().UUID)
	words.Generation.Store(0)
	words.High.Store(high)
	words.Low.Store(low)
	words.Bit.Store(uint64(bit))
	words.Fd.Store(uint64(p.obj.FD()) + 1)
	words.Generation.Store(generation)
	return bit, nil
}

// lend gives a bit to a member that this process rings itself. There is a set, and with it a bell.
func (p *domain) lend() (int, *doorbell.Domain, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	bit := p.takeBit()
	if bit < 0 {
		return -1, nil, errNoBit()
	}
	return bit, p.bell, nil
}

// giveBack takes it back.
func (p *domain) giveBack(bit int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken[bit/64] &^= 1 << (bit % 64)
}

func errNoBit() error {
	return &Error{Pkg: kind.Pkg, Op: "add", Field: "members", Got: kind.DomainBits,
		Want: "fewer", Err: syscall.ENOSPC, Hint: "close queues that are no longer needed"}
}

// reopen returns another hold on the process's bell, for producers of the process itself.
func (p *domain) reopen(uuid shm.UUID) (*shm.Object, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.obj == nil || p.obj.Header().UUID != uuid {
		return nil, ErrNoWait
	}
	return openBellFD(uuid, p.obj.FD())
}

// nameIn gives the bell a name beside the queue, where its producers look for it.
func (p *domain) nameIn(home *shm.Dir) error {
	if home == nil || slices.ContainsFunc(p.homes, home.Is) {
		return nil
	}
	removeDeadBells(home)
	if err := p.obj.LinkTo(home, kind.BellName(p.obj.Header().UUID)); err != nil {
		if errors.Is(err, syscall.EXDEV) {
			err = &Error{Pkg: kind.Pkg, Op: "add", Field: "directory", Got: home.Path(), Err: err,
				Want: "one in the file system of the process's other queues",
				Hint: "open its first set with it"}
		}
		return err
	}
	p.homes = append(p.homes, home.Dup())
	return nil
}

func (p *domain) takeBit() int {
	for i, w := range p.taken {
		if w == ^uint64(0) {
			continue
		}
		for b := range 64 {
			if w>>b&1 == 0 {
				p.taken[i] |= 1 << b
				return i*64 + b
			}
		}
	}
	return -1
}

// leave gives a bit back when its queue closes.
func (p *domain) leave(bit int, words *kind.BellWords) error {
	words.Generation.Store(0)
	p.giveBack(bit)
	return p.release()
}

// removeDeadBells removes the bells of processes that died.
func removeDeadBells(d *shm.Dir) {
	names, err := d.List()
	if err != nil {
		return
	}
	for _, n := range names {
		if n.IsDir || !strings.HasPrefix(n.Name, shm.BellPrefix) {
			continue
		}
		_ = collect.Remove(d, n.Name, collect.Options{Kinds: []shm.Kind{shm.KindBell}})
	}
}
