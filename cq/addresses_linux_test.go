package cq_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

func init() {
	maps.Copy(roles, map[string]func(){
		"address-owner":  childAddressOwner,
		"address-reader": childAddressReader,
	})
}

const (
	steadyAddresses = 20 // stay from the first owner on
	churnAddresses  = 44 // come and go
)

// stripes is an address in which a mix of two shows. Those of one number but another round differ
// in every word.
func stripes(i int, round uint64) []byte {
	b := make([]byte, 32)
	for at := 0; at < len(b); at += 8 {
		binary.LittleEndian.PutUint64(b[at:], uint64(i)<<48|round)
	}
	return b
}

// whole reports whether an address is one that somebody inserted.
func whole(b []byte) bool {
	return len(b) == 32 && bytes.Equal(b[:24], b[8:])
}

var churning = cq.AddressOptions{Count: steadyAddresses + churnAddresses, Format: cq.AddrOpaque,
	UserID: true}

// childAddressOwner adopts or creates the vector and changes it as fast as it can until it is
// killed or told to stop.
func childAddressOwner() {
	d := shmtest.Needs(shm.OpenDir(""))
	stop := toldToStop()
	name := os.Getenv(envQueue)
	v := shmtest.Needs(cq.OpenAddresses(cq.Named(d, name), churning))
	for i := range steadyAddresses {
		shmtest.Needs(v.Insert([][]byte{stripes(i, 0)}, cq.InsertOptions{}))
	}
	// What a predecessor left goes first.
	for a := cq.Addr(steadyAddresses); a < cq.Addr(v.Options().Count); a++ {
		if _, err := v.Lookup(a, nil); err == nil {
			need(v.Remove(a))
		}
	}
	say("ready %d", v.Len())
	var held []cq.Addr
	for round := uint64(1); !stop.Load(); round++ {
		if n := len(held); n == churnAddresses || n > 0 && rand.IntN(2) == 0 {
			i := rand.IntN(n)
			need(v.Remove(held[i]))
			held[i] = held[n-1]
			held = held[:n-1]
			continue
		}
		id := steadyAddresses + cq.Addr(round) // is no index of a steady one
		got := shmtest.Needs(v.Insert([][]byte{stripes(rand.IntN(1000)+100, round)},
			cq.InsertOptions{IDs: []cq.Addr{id}}))
		held = append(held, got...)
	}
	need(v.Close())
}

// seen counts what a reader of a vector that changes all the time found.
type seen struct{ found, unset, gone, torn, lost int }

// watchAddresses looks every index and every steady address up until stop says so.
func watchAddresses(v *cq.AddressVector, stop func() bool) (s seen) {
	buf := make([]byte, 64)
	for !stop() {
		for i := range v.Options().Count {
			n, err := v.Lookup(cq.Addr(i), buf)
			switch {
			case err != nil:
				s.unset++
			case !whole(buf[:n]):
				s.torn++
			default:
				s.found++
				// It may be gone by now, but not belong to a steady one.
				if src, ok := v.Resolve(buf[:n]); !ok {
					s.gone++
				} else if (i < steadyAddresses) != (src < steadyAddresses) {
					s.torn++
				}
			}
		}
		for i := range steadyAddresses {
			if src, ok := v.Resolve(stripes(i, 0)); !ok || src != cq.Addr(i) {
				s.lost++
			}
		}
	}
	return s
}

func childAddressReader() {
	d := shmtest.Needs(shm.OpenDir(""))
	v := shmtest.Needs(cq.AttachAddresses(cq.Named(d, os.Getenv(envQueue))))
	say("ready")
	stop := toldToStop()
	s := watchAddresses(v, stop.Load)
	say("%d %d", s.torn, s.lost)
	need(v.Close())
}

// TestAddressesReadWhileWritten: readers in two processes never see a torn address, and an address
// that stays is found at every moment, whatever else moves in the index.
func TestAddressesReadWhileWritten(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	d := openDir(t)
	env := envQueue + "=" + queueName(t)
	owner := startChild(t, "address-owner", env)
	owner.Says(t, "ready 20")
	v := shmtest.Have(cq.AttachAddresses(cq.Named(d, queueName(t)))).In(t)
	other := startChild(t, "address-reader", env)
	_ = other.Line(t)
	end := time.Now().Add(700 * time.Millisecond)
	s := watchAddresses(v, func() bool { return time.Now().After(end) })
	eventually(t, "some are there, and some are not", func() bool {
		once := true
		more := watchAddresses(v, func() bool { once = !once; return once })
		s.torn, s.lost = s.torn+more.torn, s.lost+more.lost
		s.found, s.unset = s.found+more.found, s.unset+more.unset
		return s.found > 0 && s.unset > 0
	})
	if s.torn > 0 || s.lost > 0 {
		t.Errorf("%+v", s)
	}
	if got := other.Stop(t); got != "0 0" {
		t.Errorf("torn and lost in the other process: %s", got)
	}
	_ = owner.Stop(t)
}

// TestAddressesMove: an address is found at every moment while the cells before its own are emptied
// and it moves up.
func TestAddressesMove(t *testing.T) {
	t.Parallel()
	v := shmtest.Have(cq.CreateAddresses(cq.Unnamed("move"),
		cq.AddressOptions{Count: 16, Format: cq.AddrOpaque})).In(t)
	const neighbours = 8
	var addrs [][]byte // all of one cell
	home := cq.AddressHome(v, stripes(0, 0))
	for i := uint64(0); len(addrs) < neighbours+1; i++ {
		if a := stripes(0, i); cq.AddressHome(v, a) == home {
			addrs = append(addrs, a)
		}
	}
	last := addrs[neighbours]
	var steady atomic.Uint64 // odd while the last one is in the vector
	var stop atomic.Bool
	var looks, lost atomic.Int64
	var all sync.WaitGroup
	all.Go(func() {
		for !stop.Load() {
			before := steady.Load()
			_, ok := v.Resolve(last)
			if before&1 == 1 && steady.Load() == before {
				if looks.Add(1); !ok {
					lost.Add(1)
				}
			}
		}
	})
	// A look that fell into one state from begin to end needs two goroutines that run at once, or
	// one that is interrupted at the right moment.
	end, atLast := time.Now().Add(300*time.Millisecond), time.Now().Add(time.Minute)
	for time.Now().Before(end) || looks.Load() == 0 && time.Now().Before(atLast) {
		at := insert(t, v, addrs...)
		steady.Add(1)
		for _, i := range rand.Perm(neighbours) {
			must(t, v.Remove(at[i]))
		}
		steady.Add(1)
		must(t, v.Remove(at[neighbours]))
	}
	stop.Store(true)
	all.Wait()
	if looks.Load() == 0 || lost.Load() != 0 {
		t.Errorf("lost %d times in %d looks", lost.Load(), looks.Load())
	}
}

func init() { roles["vector owner"] = childVectorOwner }

// childVectorOwner adopts a vector, and leaves it when it is told to.
func childVectorOwner() {
	d := shmtest.Needs(shm.OpenDir(""))
	v, err := cq.OpenAddresses(cq.Named(d, os.Getenv(envQueue)), cq.AddressOptions{Existing: true})
	need(err)
	say("owner")
	var line string
	_, _ = fmt.Scanln(&line)
	need(v.Detach())
	say("left")
	_, _ = fmt.Scanln(&line)
}

// TestAddressOwnerDeathIsAnEvent: every process that looks things up is told once of each owner
// that died, and of its successor. One that is stopped is not dead, nor one that leaves.
func TestAddressOwnerDeathIsAnEvent(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	shmtest.Long(t)
	d, name := openDir(t), queueName(t)
	own, err := cq.CreateAddresses(cq.Named(d, name), cq.AddressOptions{Lifetime: cq.Persistent})
	must(t, err)
	shmtest.Got(own.Insert(sockaddrs(0, 1), cq.InsertOptions{})).Or(t)
	var es []*cq.EventQueue
	for range 2 {
		v := shmtest.Have(cq.AttachAddresses(cq.Named(d, name))).In(t)
		es = append(es, newsOf(t, v.BindEvents, cq.EventOptions{}))
	}
	fid := own.FID()
	must(t, own.Detach())
	wantNew := func(pid int) {
		t.Helper()
		for _, e := range es {
			if ev, p := nextPeer(t, e); ev.Event != cq.EventPeerNew || ev.FID != fid ||
				p.Role != cq.PeerOwner || p.PID != pid {
				t.Errorf("%+v, %+v, want owner %d", ev, p, pid)
			}
		}
	}
	for _, dies := range []bool{true, true, false} {
		c := startChild(t, "vector owner", envQueue+"="+name)
		c.Says(t, "owner")
		wantNew(c.Process.Pid)
		if !dies {
			shmtest.Got(fmt.Fprintln(c.In, "leave")).Or(t)
			c.Says(t, "left")
			c.Kill()
			break
		}
		c.Halt(t)
		noNews(t, es[0])
		c.Kill()
		for _, e := range es {
			wantDeath(t, e, fid, cq.PeerOwner, c.Process.Pid)
		}
	}
	for _, e := range es {
		noNews(t, e)
	}
	own = shmtest.Got(cq.OpenAddresses(cq.Named(d, name), cq.AddressOptions{Existing: true})).Or(t)
	wantNew(os.Getpid())
	must(t, own.Close())
}
