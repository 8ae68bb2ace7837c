package cq

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"

	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/shm"
)

// Follower is a writer that stays with a place where readers of other users come and go: whoever
// reads there gets what it publishes, and what the reader before left.
//
//	f, err := cq.Follow(ctx, dial, cq.WriterOptions{Trust: cq.TrustOthers, Allow: readers})
//	for e := range entries {
//		for {
//			err = f.Writer().Post(e)
//			if !errors.Is(err, cq.ErrPeerGone) {
//				break
//			}
//			err = f.Renew(ctx)
//		}
//	}
//
// Like a [Writer] it is one goroutine's at a time.
type Follower struct {
	dial func(context.Context) (*net.UnixConn, error)
	w    *Writer
}

// How long to wait between looks for a reader.
const (
	followFirst = time.Millisecond
	followMost  = 100 * time.Millisecond
)

// Follow attaches to whoever reads at a place, once somebody does. dial connects to it, for
// instance to the path of a socket; it is called again and again until there is a reader with room,
// or ctx ends. The connection is closed by the follower. Errors are those of [AttachConn], but for
// those of a reader that is gone or going, which are waited out; when ctx ends the last of them is
// told as well. Trust must be TrustOthers.
func Follow(ctx context.Context, dial func(context.Context) (*net.UnixConn, error),
	o WriterOptions) (*Follower, error) {
	if o.Trust != TrustOthers {
		return nil, kind.Refuse("follow", "", "Trust", o.Trust, TrustOthers, ErrInvalid)
	}
	f := &Follower{dial: dial}
	err := f.meet(ctx, func(c *net.UnixConn) (*Writer, error) { return AttachConn(ctx, c, o) })
	if err != nil {
		return nil, err
	}
	return f, nil
}

// Writer returns the writer to post with, until the next Renew. It must not be closed.
func (f *Follower) Writer() *Writer { return f.w }

// Renew waits until the reader is proved dead or has detached, and goes on with its successor as
// soon as there is one: see [Writer.Follow] for what that one gets. After an error the follower is
// as it was, and Renew can be called again. Errors are those of [Writer.Follow] and [Follow]. Where
// there is nothing to go on with, because the reader has closed its queue, also while Renew waits,
// or has given this writer up, that is ErrClosed or a [*LaneError], whoever listens.
//
// It must be called when [Writer.ReaderGone] is closed also if there is nothing to post.
func (f *Follower) Renew(ctx context.Context) error {
	if err := f.await(ctx); err != nil {
		return err
	}
	return f.meet(ctx, func(c *net.UnixConn) (*Writer, error) { return f.w.Follow(ctx, c) })
}

// await waits until the reader is gone, or has left the queue to a successor.
func (f *Follower) await(ctx context.Context) error {
	look := time.NewTicker(followMost) // what a living reader writes beside a row wakes nobody
	defer look.Stop()
	for {
		left, err := f.w.fate()
		if err != nil {
			return failed("follow", f.w.name, err)
		}
		if left {
			return nil
		}
		select {
		case <-f.w.ReaderGone():
			return nil
		case <-ctx.Done():
			return ended(ctx)
		case <-look.C:
		}
	}
}

// fate reports that the reader has left the queue to a successor, or why none can go on with it.
func (w *Writer) fate() (left bool, err error) {
	if !w.guard.enterAny() {
		return false, ErrClosed
	}
	defer w.guard.leaveAny()
	flags := w.ringer.Flags()
	if flags&(kind.RowClosed|kind.RowPoisoned) != 0 {
		return false, w.refused(flags)
	}
	return flags&kind.RowLeft != 0, nil
}

// meet tries until somebody is there.
func (f *Follower) meet(ctx context.Context, with func(*net.UnixConn) (*Writer, error)) error {
	for wait := followFirst; ; wait = min(2*wait, followMost) {
		c, err := f.dial(ctx)
		if err == nil {
			var w *Writer
			w, err = with(c)
			_ = c.Close() // the writer has its own
			if err == nil {
				f.w = w
				return nil
			}
			if !passing(err) {
				return err
			}
		}
		if f.w != nil { // there may be nothing to go on with, and nobody to say so
			if _, over := f.w.fate(); over != nil {
				return failed("follow", f.w.name, over)
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w; the last try: %w", ended(ctx), err)
		case <-time.After(wait):
		}
	}
}

// passing tells errors of a reader that is gone or going, or has no room now.
func passing(err error) bool {
	for _, is := range []error{ErrPeerGone, ErrClosed, ErrLanes, ErrTimedOut, shm.ErrStale,
		syscall.ECONNRESET, syscall.EPIPE} {
		if errors.Is(err, is) {
			return true
		}
	}
	return errors.Is(err, errPeerRefused) && errors.Is(err, ErrBusy)
}

// Close closes the writer. What its reader has not read stays with that one; what a reader that is
// gone left is lost unless Renew was called, see [Writer.Left].
func (f *Follower) Close() error { return f.w.Close() }
