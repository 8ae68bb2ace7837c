package cq_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/collect"
	"github.com/shmring/shmring/shm"
)

func init() { roles["poor beside"] = childPoorBeside }

// TestFewDescriptorsBeside: as with queues, each call on what stands beside them may find no
// descriptor anywhere: it says so, leaves nothing behind, and works when there is one.
func TestFewDescriptorsBeside(t *testing.T) {
	t.Parallel()
	poorChild(t, "poor beside")
}

// scarce makes calls for which descriptors are scarce.
type scarce struct {
	d    *shm.Dir
	root string
	most int // that a call needed
}

// makes sweeps a call that opens something: it needs a descriptor, and if it fails leaves no file.
func (s *scarce) makes(what string, f func() error) {
	if s.calls(what, f) == 0 {
		say("%s needs no descriptor", what)
	}
}

// works sweeps a call that may do without.
func (s *scarce) works(what string, f func() error) { s.calls(what, f) }

// free is a call that must do without, also to give back what there is.
func (s *scarce) free(what string, f func() error) {
	if n := s.calls(what, f); n != 0 {
		say("%s needs %d descriptors", what, n)
	}
}

// ends closes something while there is no descriptor. It is closed then, and either nothing of it
// is left or the error says so; what is left is garbage for others.
func (s *scarce) ends(name string, c io.Closer) {
	fillGaps()
	limit(uint64(slices.Max(openFiles()) + 1))
	err := c.Close()
	limit(4096)
	left := objects(s.root)
	there := strings.Contains(left+" ", s.root+"/"+name+" ")
	if err != nil && !errors.Is(err, syscall.EMFILE) || there != (err != nil) {
		say("close %s: %v, and there is %s", name, err, left)
	}
	need(c.Close())
	need(collect.Remove(s.d, name, collect.Options{}))
}

func (s *scarce) calls(what string, f func() error) int {
	files := objects(s.root)
	n := needs(what, f, func() {
		if now := objects(s.root); now != files {
			say("%s leaves %s, before %s", what, now, files)
		}
	})
	s.most = max(s.most, n)
	return n
}

func childPoorBeside() {
	d, err := shm.OpenDir("")
	need(err)
	time.Sleep(time.Millisecond) // the runtime gets the descriptors that it cannot do without
	s := &scarce{d: d, root: d.Path()}
	empty := objects(s.root)
	for _, f := range []func(*scarce){poorEvents, poorCounter, poorAddresses, poorWaitSet, poorPollSet,
		poorChannel, poorChannelWaits, poorFollow} {
		f(s)
		if left := objects(s.root); left != empty {
			say("at the end there is %s", left)
		}
	}
	if s.most < 5 { // an object takes one for its directory and two for itself
		say("nothing needed more than %d descriptors", s.most)
	}
	need(d.Close())
	need(os.RemoveAll(s.root))
	say("done")
}

func poorEvents(s *scarce) {
	var e, deaths *cq.EventQueue
	var w *cq.EventWriter
	o := cq.EventOptions{Size: 8, Write: true, Wait: cq.WaitFD, Lifetime: cq.Persistent}
	ctx := context.Background()
	s.makes("create events", func() (err error) {
		e,
			err = cq.CreateEvents(cq.Named(s.d, "e"), o)
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
	s.makes("read an event", read)              // the reader opens the lane
	s.works("wait for an event", func() error { // the lanes that it could not look for
		_, err := eqSread(e, &cq.Event{}, time.Millisecond)
		if errors.Is(err, syscall.EMFILE) {
			return err
		}
		return instead(err, cq.ErrTimedOut)
	})
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

func poorCounter(s *scarce) {
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
	s.free("wait for a value", func() error {
		return c.Wait(context.Background(), 2,
			cq.WaitOptions{})
	})
	s.free("wait in vain", func() error {
		return instead(cntrWait(c, 3, time.Millisecond), cq.ErrTimedOut)
	})
	s.works("close a counter", func() error { return peer.Close() })
	s.works("close the last of a counter", func() error { return c.Close() })
}

func poorAddresses(s *scarce) {
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
	e, err := cq.CreateEvents(cq.Named(s.d, "e"), cq.EventOptions{Size: 8})
	need(err)
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
	q, err := cq.Create(cq.Named(s.d, "q"), cq.Options{Size: 8, Shared: true})
	need(err)
	w, err := cq.Attach(context.Background(), cq.Named(s.d, "q"), cq.WriterOptions{})
	need(err)
	c, err = cq.CreateCounter(cq.Named(s.d, "c"), cq.CounterOptions{Wait: cq.WaitFD})
	need(err)
	post = func() error { return w.Post(&cq.Entry{Context: 5}) }
	need(passes(q, w)) // the reader opens the lane
	return q, c, post, func() { need(errors.Join(w.Close(), q.Close(), c.Close())) }
}

func poorWaitSet(s *scarce) {
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
	need(post())
	s.free("wait in a wait set", func() error {
		n, err := set.Wait(context.Background(), dst, cq.WaitOptions{})
		if err == nil && (n != 1 || dst[0] != q) {
			err = fmt.Errorf("%d are ready", n)
		}
		return err
	})
	s.free("remove from a wait set", func() error { return set.Remove(q) })
	s.free("remove a counter from a wait set", func() error { return set.Remove(c) })
	s.free("close a wait set", func() error { return set.Close() })
	end()
}

func poorPollSet(s *scarce) {
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

func poorChannel(s *scarce) {
	var ch *cq.Channel
	s.makes("create a channel", func() (err error) { ch, err = cq.NewChannel(s.d); return err })
	q, _, post, end := members(s)
	s.works("attach to a channel", func() error { return ch.Attach(q) })
	s.works("get the descriptor of a channel", func() error { _, err := ch.FD(); return err })
	s.free("arm", func() error { return ch.RequestNotify(q, cq.NotifyAny) })
	need(post())
	s.free("get", func() error {
		ev, err := ch.GetEvent(context.Background(), cq.WaitOptions{})
		if err == nil && ev.Queue != q {
			err = fmt.Errorf("an event of %v", ev.Queue)
		}
		return errors.Join(err, ch.Ack(q, 1))
	})
	s.free("detach from a channel", func() error { return ch.Detach(context.Background(), q) })
	s.free("close a channel", func() error { return ch.Close() })
	end()
}

// poorChannelWaits: who waits for an event of a lane that it cannot open gets it when it can,
// though nobody rings any more.
func poorChannelWaits(s *scarce) {
	ch, err := cq.NewChannel(s.d)
	need(err)
	q, _, post, end := members(s)
	need(errors.Join(ch.Attach(q), ch.RequestNotify(q, cq.NotifyAny), post()))
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	get := func() error {
		ev, err := ch.GetEvent(ctx, cq.WaitOptions{})
		return errors.Join(err, ch.Ack(ev.Queue, 1))
	}
	need(get())
	dst := make([]cq.Context, 2)
	_, err = cq.Read(q, dst)
	need(err)
	w, err := cq.Attach(ctx, cq.Named(s.d, "q"), cq.WriterOptions{}) // its reader does not look now
	need(err)
	fillGaps()
	limit(0)
	need(ch.RequestNotify(q, cq.NotifyAny))
	if _, err := cq.Read(q, dst); !errors.Is(err, syscall.EMFILE) {
		say("a lane without a descriptor: %v", err)
	}
	need(w.Post(&cq.Entry{Context: 6}))
	got := make(chan error, 1)
	go func() { got <- get() }()
	time.Sleep(100 * time.Millisecond) // it has looked in vain
	limit(4096)
	need(<-got)
	if n, err := cq.Read(q, dst); n != 1 || dst[0].Context != 6 {
		say("after the event it reads %d, %v", n, err)
	}
	need(errors.Join(ch.Detach(ctx, q), ch.Close(), w.Close()))
	end()
}

// poorFollow: a writer goes on with the next reader when both have the descriptors, and until then
// keeps what the former one left.
func poorFollow(s *scarce) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	o := cq.Options{Size: 4, Trust: cq.CrossUser, Allow: bothUsers()}
	readers := [2]*cq.Queue{}
	for i := range readers {
		var err error
		readers[i], err = cq.Create(cq.Unnamed("reader"), o)
		need(err)
	}
	var w *cq.Writer
	meet := func(q *cq.Queue, attach func(conn *net.UnixConn) (*cq.Writer, error)) error {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		a, err := socket(fds[0])
		if err != nil {
			return errors.Join(err, unix.Close(fds[1]))
		}
		defer a.Close()
		b, err := socket(fds[1])
		if err != nil {
			return err
		}
		defer b.Close()
		accepted := make(chan error, 1)
		go func() { accepted <- q.Accept(ctx, a) }()
		next, err := attach(b)
		if err == nil {
			w = next
		}
		if other := <-accepted; (other == nil) != (err == nil) {
			say("the reader says %v, the writer %v", other, err)
		}
		if errors.Is(err, shm.ErrTruncated) { // so the kernel says that no descriptor was free
			err = syscall.EMFILE
		}
		return err
	}
	s.makes("attach for others", func() error {
		return meet(readers[0], func(conn *net.UnixConn) (*cq.Writer, error) {
			return cq.Attach(ctx, cq.Over(conn), cq.WriterOptions{Trust: cq.CrossUser, Allow: o.Allow})
		})
	})
	need(w.Post(&cq.Entry{Context: 8}))
	need(readers[0].Detach())
	s.makes("follow", func() error {
		return meet(readers[1], func(conn *net.UnixConn) (*cq.Writer, error) {
			return w.Follow(ctx, conn)
		})
	})
	need(w.Post(&cq.Entry{Context: 9}))
	dst := make([]cq.Context, 3)
	if n, err := cq.Read(readers[1], dst); n != 2 || dst[0].Context != 8 || dst[1].Context != 9 {
		say("the next reader reads %d, %v, %v", n, dst, err)
	}
	need(errors.Join(w.Close(), readers[1].Close()))
}
