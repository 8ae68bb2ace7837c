package torture

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/shmring/shmring/cq"
)

// TestWithoutCancel: the end of a wait hides nothing that went wrong beside it.
func TestWithoutCancel(t *testing.T) {
	ended := fmt.Errorf("cq: wait: %w", context.Canceled)
	bad := &cq.Error{Op: "close", Err: syscall.EBADMSG}
	for _, c := range []struct{ err, want error }{
		{nil, nil},
		{context.Canceled, nil},
		{ended, nil},
		{errors.Join(ended, errors.Join(nil, nil)), nil},
		{errors.Join(ended, errors.Join(ended, nil)), nil},
		{fmt.Errorf("get: %w", errors.Join(ended)), nil},
		{bad, bad},
		{&cq.Error{Op: "close"}, errors.ErrUnsupported}, // anything
		{errors.Join(ended, bad), bad},
		{errors.Join(errors.Join(nil, bad), ended), bad},
		{fmt.Errorf("get: %w", errors.Join(ended, bad)), bad},
		{context.DeadlineExceeded, context.DeadlineExceeded},
	} {
		got := withoutCancel(c.err)
		if (got == nil) != (c.want == nil) || c.want == bad && !errors.Is(got, bad) {
			t.Errorf("of %v it leaves %v", c.err, got)
		}
	}
}

// failing is a set that cannot be left.
type failing struct{ err error }

func (f failing) Remove(cq.Waitable) error { return nil }
func (f failing) Close() error             { return f.err }

// TestLeaveSetFails: what a set says when it is closed gets through when the wait was cancelled.
func TestLeaveSetFails(t *testing.T) {
	r := &reading{}
	left := r.leave(failing{syscall.EBADMSG})
	if err := withoutCancel(errors.Join(context.Canceled, left)); !errors.Is(err, syscall.EBADMSG) {
		t.Errorf("it says %v", err)
	}
	left = r.leave(failing{})
	if err := withoutCancel(errors.Join(context.Canceled, left)); err != nil {
		t.Errorf("nothing was wrong, and it says %v", err)
	}
}
