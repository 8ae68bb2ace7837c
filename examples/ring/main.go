// Command ring has two processes share a ring of their own in shared memory, and a bell, by which
// the reader sleeps while there is nothing.
//
//	ring read         makes the ring, and adds numbers up until a 0 comes
//	ring write 3 4 0  writes numbers, while another process reads
package main

import (
	"fmt"
	"log"
	"os"
	"strconv"

	"github.com/shmring/shmring/doorbell"
	"github.com/shmring/shmring/ring"
	"github.com/shmring/shmring/shm"
)

// The memory: each index on a line of its own, the bell's words, and the slots.
const (
	section = 1
	name    = "numbers"
	tailAt  = 0
	headAt  = 128
	bellAt  = 256
	slotsAt = 4096
	bytes   = slotsAt + 64*8
)

// shared is the memory as both sides have it.
type shared struct {
	tail, head *ring.Index
	words      *doorbell.Words
	slots      []uint64
}

func lay(mem []byte) (s shared) {
	var err error
	s.tail, err = ring.IndexAt(mem, tailAt)
	check(err)
	s.head, err = ring.IndexAt(mem, headAt)
	check(err)
	s.words, err = doorbell.Map(mem[bellAt:slotsAt], 1)
	check(err)
	s.slots, err = ring.Slots[uint64](mem[slotsAt:bytes])
	check(err)
	return s
}

func main() {
	if len(os.Args) < 2 {
		log.Fatal("usage: ring read | ring write NUMBER...")
	}
	dir, err := shm.OpenDir("")
	check(err)
	defer dir.Close()
	if os.Args[1] == "read" {
		read(dir)
	} else {
		write(dir, os.Args[2:])
	}
}

func read(dir *shm.Dir) {
	spec := shm.Spec{Kind: shm.KindRegion, Sections: []shm.Section{{Kind: section, Length: bytes}}}
	obj, err := dir.Create(name, spec, func(o *shm.Object) error {
		mem, _, err := o.Section(section, 0)
		if err == nil {
			lay(mem).words.Init()
		}
		return err
	})
	check(err)
	defer obj.Close()
	mem, _, err := obj.Section(section, 0)
	check(err)
	s := lay(mem)
	numbers := ring.NewConsumer(s.tail, s.head, s.slots, 0)
	bell, err := doorbell.NewBell(s.words, doorbell.Options{ReleaseStores: true,
		Levels: []func() (head, tail uint64){
			func() (head, tail uint64) { return numbers.Head(), numbers.Tail() }}})
	check(err)
	defer bell.Close()
	fmt.Println("reading")
	sum := uint64(0)
	for {
		bell.Look()
		span := numbers.Span(len(s.slots))
		if len(span) == 0 {
			check(numbers.Err()) // the other process wrote what no index can be
			check(bell.Wait(0))
			continue
		}
		for _, n := range span {
			if n == 0 {
				fmt.Println("sum:", sum)
				check(obj.Unlink())
				return
			}
			sum += n
		}
		numbers.Release(len(span))
	}
}

func write(dir *shm.Dir, args []string) {
	obj, err := dir.Open(name, shm.ReadOnly)
	check(err)
	defer obj.Close()
	mem, err := obj.MapWritable(section, 0)
	check(err)
	s := lay(mem)
	numbers := ring.NewProducer(s.tail, s.head, s.slots, s.tail.Load(), ring.Release)
	ringer, err := doorbell.NewRinger(s.words, 0, doorbell.RingerOptions{Fence: numbers.Republish})
	check(err)
	defer ringer.Close()
	for _, arg := range args {
		n, err := strconv.ParseUint(arg, 10, 64)
		check(err)
		a, _ := numbers.Reserve(1)
		if len(a) == 0 {
			log.Fatal("the ring is full")
		}
		a[0] = n
		numbers.Commit(1)
		ringer.Published(numbers.Tail())
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
