package cq

import (
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/shm"
)

// What tests need to stop a process half way through an add, or to scribble as a hostile peer.
const (
	SectCounter     = kind.SectCounter
	OffCounterErr   = kind.OffCounterErr
	OffCounterBell  = kind.OffCounterBell
	OffCounterRows  = kind.OffCounterRows
	CounterRowBytes = kind.CounterRowBytes
)

// AddSilently is the first half of Add: what an adder has done that dies before it rings.
func (c *Counter) AddSilently(n uint64) { c.words.Value.Add(n) }

// CounterSpec is the layout of a counter.
func CounterSpec(name string, o CounterOptions) shm.Spec { return o.spec(name) }

// CounterCheckpoint is what a set keeps of a counter.
type CounterCheckpoint = counterCheckpoint

// Bind is what a set or a feeder does.
func (c *Counter) Bind() error { return c.holders.bind() }

// Unbind takes it back.
func (c *Counter) Unbind() { c.holders.unbind() }
