package bench

import (
	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/doorbell"
	"github.com/shmring/shmring/internal/spin"
)

// produce sends n messages and looks at the bell after every commit.
func (o *outlet) produce(batch, n int) error {
	for n > 0 {
		want := min(batch, n)
		a, b := o.ring.Reserve(want)
		if len(a)+len(b) < want {
			if err := o.ring.Err(); err != nil {
				return err
			}
			continue
		}
		s := o.ring.Tail()
		fill(a, s)
		fill(b, s+uint64(len(a)))
		o.ring.Commit(want)
		o.bell.Published(o.ring.Tail(), 0)
		n -= want
	}
	return nil
}

// consume reads n messages; it spins and then sleeps when there is none.
func (in *inlet) consume(batch, n int) (total uint64, err error) {
	for n > 0 {
		a, b := in.ring.Peek(min(batch, n))
		got := len(a) + len(b)
		if got == 0 {
			if err := in.await(in); err != nil {
				return total, err
			}
			continue
		}
		total += sum(a) + sum(b)
		in.ring.Release(got)
		n -= got
	}
	return total, nil
}

// produceBare is produce without a bell.
func (o *outlet) produceBare(batch, n int) error {
	for n > 0 {
		want := min(batch, n)
		a, b := o.ring.Reserve(want)
		if len(a)+len(b) < want {
			if err := o.ring.Err(); err != nil {
				return err
			}
			continue
		}
		s := o.ring.Tail()
		fill(a, s)
		fill(b, s+uint64(len(a)))
		o.ring.Commit(want)
		n -= want
	}
	return nil
}

// consumeBare is consume without a bell: it spins for ever.
func (in *inlet) consumeBare(batch, n int) (total uint64, err error) {
	for n > 0 {
		a, b := in.ring.Peek(min(batch, n))
		got := len(a) + len(b)
		if got == 0 {
			if err := in.ring.Err(); err != nil {
				return total, err
			}
			spin.Pause(in.pauses)
			continue
		}
		total += sum(a) + sum(b)
		in.ring.Release(got)
		n -= got
	}
	return total, nil
}

// spinThenSleep is a blocking read that looks for the default budget before it sleeps.
func (in *inlet) spinThenSleep() error {
	until := int64(0)
	for {
		for range 8 { // the clock costs as much as some looks
			spin.Pause(in.pauses)
			if in.ring.Len() != 0 {
				in.warm()
				return nil
			}
		}
		switch now := spin.Now(); {
		case until == 0:
			until = now + int64(spin.Default)
		case now >= until:
			return in.sleep()
		}
	}
}

// warm is R1 and R2, as every read begins: a lane that had nothing was left parked.
func (in *inlet) warm() {
	if in.bell.Only() != 0 {
		in.bell.Take()
		in.bell.Heat()
	}
}

// sleep is R3 to R9 and then R1, R2: the lane was found empty.
func (in *inlet) sleep() error {
	if err := in.ring.Err(); err != nil {
		return err
	}
	more, err := in.bell.Park()
	if err != nil {
		return err
	}
	if !more {
		in.bell.Sleep(doorbell.Wait{})
		in.bell.Take()
	}
	in.bell.Heat()
	return nil
}

// poll is sleep for a user who waits on the descriptor.
func (p *party) poll(in *inlet) error {
	if err := in.ring.Err(); err != nil {
		return err
	}
	ready, _, err := in.bell.TryWait()
	if err != nil {
		return err
	}
	if !ready {
		var events [1]unix.EpollEvent
		if _, err := unix.EpollWait(p.face.FD(), events[:], -1); err != nil && err != unix.EINTR {
			return err
		}
	}
	in.bell.Take()
	return nil
}
