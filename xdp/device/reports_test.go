package device

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// TestReports: of a cause that does not end a few are told, then how many were not; of another one
// the first is told all the same, and nothing is uncounted.
func TestReports(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	told, left := map[error]int{}, map[error]int{}
	r := &reports{tell: func(err error) {
		mu.Lock()
		defer mu.Unlock()
		var o *OmittedError
		if errors.As(err, &o) {
			if o.Count < 1 || !strings.Contains(err.Error(), fmt.Sprint(o.Count)) {
				t.Errorf("%+v", o)
			}
			left[causeOf(err)] += o.Count
			return
		}
		told[causeOf(err)]++
	}}
	counts := map[error]int{ErrBudget: 300, ErrProtocol: 2, syscall.EMFILE: 100, nil: 100}
	var all sync.WaitGroup
	for cause, n := range counts {
		all.Go(func() {
			for i := range n {
				err := fmt.Errorf("number %d", i)
				if cause != nil {
					err = failed("flood", "", fmt.Errorf("%w: number %d", cause, i), "")
				}
				r.add(err)
			}
		})
	}
	all.Wait()
	r.close()
	for cause, n := range counts {
		if told[cause]+left[cause] != n || n > 50 && told[cause] > n/2 || told[cause] == 0 {
			t.Errorf("%v: %d, told %d, left out %d", cause, n, told[cause], left[cause])
		}
	}
	if told[ErrProtocol] != 2 {
		t.Errorf("of two, %d were told", told[ErrProtocol])
	}
	(&reports{}).add(ErrBudget) // nobody wants to know
}

// TestReportsForEver: at whatever pace errors of one cause come, or of all causes in turn, only so
// many lines a minute are told, and all are counted; after a quiet time it begins anew.
func TestReportsForEver(t *testing.T) {
	shmtest.Long(t)
	const minutes = 30
	for _, c := range []struct {
		pause  time.Duration
		causes []error
		most   int // lines, in all minutes
	}{
		// Eight at first, one in each window of two seconds and more, and what each left out.
		{time.Second / 8, []error{ErrBudget}, 8 + 2*(6+minutes)},
		{time.Second / 7, []error{ErrBudget}, 8 + 2*(6+minutes)},
		{time.Millisecond * 10, []error{ErrBudget}, 8 + 2*(6+minutes)},
		{time.Second * 3, []error{ErrBudget}, 8 + 2*(6+minutes)},
		{time.Millisecond * 10, causesOf, len(causesOf) * (8 + 2*(6+minutes))},
	} {
		synctest.Test(t, func(t *testing.T) {
			var mu sync.Mutex
			lines, single, counted, first := 0, 0, 0, 0
			begin := time.Now()
			r := &reports{tell: func(err error) {
				mu.Lock()
				defer mu.Unlock()
				var o *OmittedError
				if lines++; errors.As(err, &o) {
					counted += o.Count
				} else {
					single++
					if time.Since(begin) < lastWindow {
						first++
					}
				}
			}}
			n := 0
			for ; time.Since(begin) < minutes*time.Minute; n++ {
				r.add(c.causes[n%len(c.causes)])
				time.Sleep(c.pause)
			}
			synctest.Wait()
			mu.Lock()
			if lines > c.most || lines < minutes || first > reportsOfAll {
				t.Errorf("every %v, %d causes: %d lines, of which %d may be, %d errors at first",
					c.pause, len(c.causes), lines, c.most, first)
			}
			mu.Unlock()
			time.Sleep(3 * lastWindow)
			synctest.Wait()
			mu.Lock()
			if single+counted != n {
				t.Errorf("of %d, %d were told and %d counted", n, single, counted)
			}
			before := single
			mu.Unlock()
			for range reportsAtFirst {
				r.add(c.causes[0])
			}
			r.close()
			if single != before+reportsAtFirst {
				t.Errorf("after a quiet time %d of %d are told", single-before, reportsAtFirst)
			}
		})
	}
}

// TestStatuses: what the server says no for has a number, and means the same to the application,
// which is told what to do about it.
func TestStatuses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		why, means error
		num        syscall.Errno
	}{
		{syscall.EMFILE, ErrNoFiles, syscall.EMFILE}, {syscall.ENFILE, ErrNoFiles, syscall.EMFILE},
		{shm.ErrNoSpace, ErrNoMemory, syscall.ENOSPC}, {errClosing, ErrClosing, syscall.ESHUTDOWN},
		{os.ErrDeadlineExceeded, ErrSlow, syscall.ETIMEDOUT},
		{fmt.Errorf("%w: %w", ErrSlow, syscall.EIO), ErrSlow, syscall.ETIMEDOUT},
		{fmt.Errorf("%w: frames", ErrBudget), ErrBudget, syscall.EDQUOT},
		{shm.ErrVersion, shm.ErrVersion, syscall.EPROTONOSUPPORT},
		{errors.New("no number"), ErrProtocol, syscall.EPROTO},
	} {
		no := refusal(stepGrant, failed("admit", "x", c.why, ""))
		h, err := decodeHello(no.encode())
		if err != nil {
			t.Fatal(err)
		}
		err = h.expect(stepGrant)
		if !errors.Is(err, c.means) || !errors.Is(err, c.num) || !strings.Contains(err.Error(), "says") {
			t.Errorf("%v became %v", c.why, err)
		}
		if hintOf(err) == "" && c.means != ErrProtocol {
			t.Errorf("%v: no hint", err)
		}
	}
}
