package cq_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/collect"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// scarce makes calls for which something is scarce: descriptors, memory, files.
type scarce struct {
	d    *shm.Dir
	root string
	// begin is what comes before a number of limits; limit leaves so much more than what is in use,
	// or all there is if that is negative.
	begin func()
	limit func(free int)
	left  func() string // what a call that fails must leave as it was
	want  []error       // why such a call fails: all of these
	exact bool          // what a call needs is known, since nothing else needs any
	most  int           // that a call needed
}

// scarceUses make one of each kind, use it in all ways and take it away again.
var scarceUses = []func(*scarce){scarceQueue, scarceEvents, scarceCounter, scarceAddresses,
	scarceWaitSet, scarcePollSet, scarceChannel}

// use goes through all of them.
func (s *scarce) use() {
	empty := objects(s.root)
	for _, f := range scarceUses {
		f(s)
		if left := objects(s.root); left != empty {
			say("at the end there is %s", left)
		}
	}
}

// makes sweeps a call that opens something: it needs some, and if it fails leaves no file.
func (s *scarce) makes(what string, f func() error) {
	if s.calls(what, f) == 0 && s.exact {
		say("%s needs nothing", what)
	}
}

// works sweeps a call that may do without.
func (s *scarce) works(what string, f func() error) { s.calls(what, f) }

// free is a call that must do without, also to give back what there is.
func (s *scarce) free(what string, f func() error) {
	if n := s.calls(what, f); n != 0 {
		say("%s needs %d", what, n)
	}
}

// ends closes something while there is nothing. It is closed then, and either nothing of it is left
// or the error says so; what is left is garbage for others.
func (s *scarce) ends(name string, c io.Closer) {
	s.begin()
	s.limit(0)
	err := c.Close()
	s.limit(-1)
	left := objects(s.root)
	there := strings.Contains(left+" ", s.root+"/"+name+" ")
	if err != nil && !s.refused(err) || there != (err != nil) {
		say("close %s: %v, and there is %s", name, err, left)
	}
	need(c.Close())
	need(collect.Remove(s.d, name, collect.Options{}))
}

// refused reports whether a call failed for want of what is scarce.
func (s *scarce) refused(err error) bool {
	for _, want := range s.want {
		if !errors.Is(err, want) {
			return false
		}
	}
	return len(s.want) > 0 && !errors.Is(err, cq.ErrCorrupt)
}

// inVain is a read that finds nothing, or lanes that it cannot look at.
func (s *scarce) inVain(err error) error {
	if s.refused(err) {
		return err
	}
	return instead(err, cq.ErrTimedOut)
}

// calls finds out how much f needs. Each failure says that it is for want of that.
func (s *scarce) calls(what string, f func() error) int {
	s.begin()
	for free := range 2000 {
		before := s.left()
		s.limit(free)
		err := f()
		s.limit(-1)
		if err == nil {
			s.most = max(s.most, free)
			return free
		}
		if !s.refused(err) {
			say("%s with %d: %v", what, free, err)
		}
		if now := s.left(); now != before {
			say("%s with %d leaves %s, before %s", what, free, now, before)
		}
	}
	say("%s never succeeds", what)
	return 0
}

// objects lists the files below a directory, without bells: those stay as long as the process.
func objects(root string) string {
	var out []string
	need(filepath.WalkDir(root, func(path string, e os.DirEntry, err error) error {
		if err == nil && !strings.HasPrefix(e.Name(), "bell-") {
			out = append(out, path)
		}
		return err
	}))
	return strings.Join(out, " ")
}

// scarceQueue is opened and adopted with each way to wait. One that cannot be leaves nobody behind
// who looks for its lanes later, in memory that is gone.
func scarceQueue(s *scarce) {
	set := shmtest.Needs(cq.NewWaitSet(s.d, cq.WaitSetOptions{}))
	var q *cq.Queue
	var w *cq.Writer
	for _, o := range []cq.Options{
		{Wait: cq.WaitMutexCond}, {Wait: cq.WaitFD}, {Wait: cq.WaitInSet, WaitSet: set},
	} {
		o.Size, o.MaxLanes, o.Lifetime = 4, 1, cq.Persistent
		s.makes("create with "+o.Wait.String(), func() (err error) {
			q, err = cq.Create(cq.Named(s.d, "q"), o)
			return err
		})
		s.makes("attach", func() (err error) {
			w, err = cq.Attach(context.Background(), cq.Named(s.d, "q"), cq.WriterOptions{})
			return err
		})
		if w.Lane() != 1 || w.Post(&cq.Entry{Context: 5}) != nil {
			say("attach: lane %d", w.Lane())
		}
		need(w.Close())
		s.makes("attach in a former writer's place", func() (err error) {
			w, err = cq.Attach(context.Background(), cq.Named(s.d, "q"), cq.WriterOptions{})
			return err
		})
		need(q.Detach()) // whoever adopts it has a lane to open
		o.Existing = true
		s.makes("adopt with "+o.Wait.String(), func() (err error) {
			q, err = cq.Open(cq.Named(s.d, "q"), o)
			return err
		})
		dst := make([]cq.Msg, 2)
		if n, err := cq.Read(q, dst); n != 1 || dst[0].Context != 5 {
			say("adopt: read %d, %v", n, err)
		}
		post := func() error { return w.Post(&cq.Entry{Context: 7}) }
		if o.WaitSet == nil {
			s.works("read in vain", func() error {
				_, err := sread(q, dst, time.Millisecond)
				return s.inVain(err)
			})
			wakes(post, func() error {
				n, err := cq.ReadContext(context.Background(), q, dst, cq.ReadOptions{})
				if err == nil && (n != 1 || dst[0].Context != 7) {
					err = fmt.Errorf("read %d, %v", n, dst)
				}
				return err
			})
		}
		if o.Wait == cq.WaitFD {
			wakes(post, func() error { return readsByDescriptor(q) })
		}
		need(errors.Join(w.Close(), q.Close()))
	}
	need(set.Close())
}

// wakes has somebody come, without a limit, who is waited for.
func wakes(come, wait func() error) {
	defer later(func() { need(come()) })()
	need(wait())
}

// readsByDescriptor reads one entry, by nothing but poll(2), which the caller has to begin anew.
func readsByDescriptor(q *cq.Queue) error {
	for {
		err := cq.TryWait(q)
		if err == nil {
			_, err = unix.Poll([]unix.PollFd{{Fd: int32(waitFD(q)), Events: unix.POLLIN}}, -1)
		}
		if err != nil && err != unix.EINTR && !errors.Is(err, cq.ErrWouldBlock) {
			return err
		}
		switch n, err := cq.Read(q, make([]cq.Context, 1)); {
		case n == 1:
			return nil
		case !errors.Is(err, cq.ErrWouldBlock):
			return err
		}
	}
}

func scarceEvents(s *scarce) {
	var e, deaths *cq.EventQueue
	var w *cq.EventWriter
	o := cq.EventOptions{Size: 8, Write: true, Wait: cq.WaitFD, Lifetime: cq.Persistent}
	ctx := context.Background()
	s.makes("create events", func() (err error) {
		e, err = cq.CreateEvents(cq.Named(s.d, "e"), o)
		return err
	})
	s.makes("attach to events", func() (err error) {
		w, err = cq.AttachEvents(ctx, cq.Named(s.d, "e"), cq.WriterOptions{})
		return err
	})
	s.makes("create events of deaths", func() (err error) {
		deaths, err = cq.CreateEvents(cq.Named(s.d, "deaths"), cq.EventOptions{Size: 8})
		return err
	})
	s.works("bind events", func() error { return w.BindEvents(deaths) })
	s.free("unbind events", func() error { return w.BindEvents(nil) })
	write := func() error {
		_, err := w.Write(&cq.Event{Event: cq.EventMRComplete, Context: 1})
		return err
	}
	read := func() error {
		ev := cq.Event{Payload: make([]byte, 64)}
		_, err := e.ReadContext(ctx, &ev, cq.ReadOptions{})
		if err == nil && ev.Context != 1 {
			err = fmt.Errorf("read %+v", ev)
		}
		return err
	}
	s.free("write an event", write)
	s.free("get the descriptor", func() error { _, err := e.GetWait(); return err })
	s.makes("read an event", read) // the reader opens the lane
	s.works("wait for an event", func() error {
		_, err := eqSread(e, &cq.Event{}, time.Millisecond)
		return s.inVain(err)
	})
	wakes(write, read)
	s.works("detach events", func() error { return e.Detach() })
	s.makes("adopt events", func() (err error) {
		e, err = cq.OpenEvents(cq.Named(s.d, "e"), cq.EventOptions{Existing: true, Write: true})
		return err
	})
	s.free("write to the next reader", write)
	s.works("read in the next reader", read)
	s.works("close the writer of events", func() error { return w.Close() })
	s.ends("e", e) // beside a lane
	s.ends("deaths", deaths)
}

func scarceCounter(s *scarce) {
	var c, peer *cq.Counter
	o := cq.CounterOptions{Wait: cq.WaitFD}
	s.makes("create a counter", func() (err error) {
		c, err = cq.CreateCounter(cq.Named(s.d, "c"), o)
		return err
	})
	s.makes("open a counter", func() (err error) {
		peer, err = cq.AttachCounter(cq.Named(s.d, "c"), o)
		return err
	})
	s.free("add", func() error { return peer.Add(2) })
	wait := func(value uint64) func() error {
		return func() error { return c.Wait(context.Background(), value, cq.WaitOptions{}) }
	}
	s.free("wait for a value", wait(2))
	s.free("wait in vain", func() error {
		return instead(cntrWait(c, 3, time.Millisecond), cq.ErrTimedOut)
	})
	wakes(func() error { return peer.Add(1) }, wait(3))
	s.works("close a counter", func() error { return peer.Close() })
	s.works("close the last of a counter", func() error { return c.Close() })
}

func scarceAddresses(s *scarce) {
	var v, peer *cq.AddressVector
	var e *cq.EventQueue
	s.makes("create addresses", func() (err error) {
		v, err = cq.CreateAddresses(cq.Named(s.d, "v"), cq.AddressOptions{Format: cq.AddrOpaque,
			Lifetime: cq.Persistent})
		return err
	})
	s.makes("open addresses", func() (err error) {
		peer, err = cq.AttachAddresses(cq.Named(s.d, "v"))
		return err
	})
	s.free("insert", func() error {
		_, err := v.Insert([][]byte{{7}}, cq.InsertOptions{})
		return err
	})
	s.free("resolve", func() error {
		if at, ok := peer.Resolve([]byte{7}); !ok || at != 0 {
			return fmt.Errorf("resolves to %d, %v", at, ok)
		}
		return nil
	})
	e = shmtest.Needs(cq.CreateEvents(cq.Named(s.d, "e"), cq.EventOptions{Size: 8}))
	s.free("bind addresses", func() error { return v.BindEvents(e) })
	s.works("close opened addresses", func() error { return peer.Close() })
	s.works("detach addresses", func() error { return v.Detach() })
	s.makes("adopt addresses", func() (err error) {
		v, err = cq.OpenAddresses(cq.Named(s.d, "v"), cq.AddressOptions{Existing: true})
		return err
	})
	if v.Len() != 1 {
		say("the successor has %d addresses", v.Len())
	}
	s.works("close addresses", func() error { return v.Close() })
	need(e.Close())
}

// members are what sets wait for, and what makes them ready.
func members(s *scarce) (q *cq.Queue, c *cq.Counter, post func() error, end func()) {
	q = shmtest.Needs(cq.Create(cq.Named(s.d, "q"), cq.Options{Size: 8, Shared: true}))
	w := shmtest.Needs(cq.Attach(context.Background(), cq.Named(s.d, "q"), cq.WriterOptions{}))
	c = shmtest.Needs(cq.CreateCounter(cq.Named(s.d, "c"), cq.CounterOptions{Wait: cq.WaitFD}))
	post = func() error { return w.Post(&cq.Entry{Context: 5}) }
	need(passes(q, w)) // the reader opens the lane
	return q, c, post, func() { need(errors.Join(w.Close(), q.Close(), c.Close())) }
}

func scarceWaitSet(s *scarce) {
	var set *cq.WaitSet
	s.makes("create a wait set", func() (err error) {
		set, err = cq.NewWaitSet(s.d, cq.WaitSetOptions{Wait: cq.WaitFD})
		return err
	})
	q, c, post, end := members(s)
	s.works("add to a wait set", func() error { return set.Add(q) })
	s.works("add a counter to a wait set", func() error { return set.Add(c) })
	dst := make([]cq.Waitable, 2)
	s.free("wait in vain in a wait set", func() error {
		_, err := setWait(set, dst, time.Millisecond)
		return instead(err, cq.ErrTimedOut)
	})
	wait := func() error {
		n, err := set.Wait(context.Background(), dst, cq.WaitOptions{})
		if err == nil && (n != 1 || dst[0] != q) {
			err = fmt.Errorf("%d are ready", n)
		}
		return err
	}
	wakes(post, wait)
	s.free("wait in a wait set", wait) // for what is there
	s.free("remove from a wait set", func() error { return set.Remove(q) })
	s.free("remove a counter from a wait set", func() error { return set.Remove(c) })
	s.free("close a wait set", func() error { return set.Close() })
	end()
}

func scarcePollSet(s *scarce) {
	var set *cq.PollSet
	s.makes("create a poll set", func() (err error) { set, err = cq.NewPollSet(s.d, 0); return err })
	q, c, post, end := members(s)
	s.works("add to a poll set", func() error { return set.Add(q) })
	s.works("add a counter to a poll set", func() error { return set.Add(c) })
	need(errors.Join(post(), c.Add(1)))
	s.free("poll", func() error {
		n, err := set.Poll(make([]cq.Waitable, 2))
		if err == nil && n != 2 {
			err = fmt.Errorf("%d are ready", n)
		}
		return err
	})
	s.free("remove from a poll set", func() error { return errors.Join(set.Remove(q), set.Remove(c)) })
	s.free("close a poll set", func() error { return set.Close() })
	end()
}

func scarceChannel(s *scarce) {
	var ch *cq.Channel
	s.makes("create a channel", func() (err error) { ch, err = cq.NewChannel(s.d); return err })
	q, _, post, end := members(s)
	s.works("attach to a channel", func() error { return ch.Attach(q) })
	s.works("get the descriptor of a channel", func() error { _, err := ch.FD(); return err })
	arm := func() error { return ch.RequestNotify(q, cq.NotifyAny) }
	get := func() error {
		ev, err := ch.GetEvent(context.Background(), cq.WaitOptions{})
		if err == nil && ev.Queue != q {
			err = fmt.Errorf("an event of %v", ev.Queue)
		}
		return errors.Join(err, ch.Ack(q, 1))
	}
	s.free("arm", arm)
	s.free("get in vain", func() error {
		_, err := getEvent(ch, time.Millisecond)
		return instead(err, cq.ErrTimedOut)
	})
	wakes(post, get)
	need(errors.Join(arm(), post()))
	s.free("get", get)
	s.free("detach from a channel", func() error { return ch.Detach(context.Background(), q) })
	s.free("close a channel", func() error { return ch.Close() })
	end()
}

// passes sends one entry through each writer.
func passes(q *cq.Queue, ws ...*cq.Writer) error {
	for i, w := range ws {
		if err := w.Post(&cq.Entry{Context: uint64(i)}); err != nil {
			return err
		}
		dst := make([]cq.Context, 2)
		if n, err := cq.Read(q, dst); n != 1 || dst[0].Context != uint64(i) {
			return fmt.Errorf("read %d entries: %v, %v", n, dst, err)
		}
	}
	return nil
}
