package cq_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/shmtest/flip"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/testdata"
)

// flipFull has a word of every scene flipped between instructions too, and all get more values.
var flipFull = flag.Bool("flip.full", false, "flip more words in more ways (a minute or more)")

const envScene = "SHMRING_TEST_SCENE"

func init() {
	roles["flip"] = func() {
		scene, err := flipScenes[os.Getenv(envScene)]()
		need(err)
		flip.Play(scene)
	}
}

// flipScenes are the calls that are attacked by TestFlip.
var flipScenes = map[string]func() (flip.Scene, error){}

// TestFlip changes every word that a peer of another user may write between any two loads that a
// call makes of it. The call gives what it gives for a value that stays, or gives the peer up.
func TestFlip(t *testing.T) {
	names := slices.Sorted(maps.Keys(flipScenes))
	if err := testdata.CheckFrozen(testdata.FrozenFlip, names); err != nil {
		t.Error(err)
	}
	for i, name := range names {
		if testing.Short() && i%4 != 0 {
			continue // a sample
		}
		t.Run(name, func(t *testing.T) {
			var o flip.Options
			switch {
			case strings.HasPrefix(name, "open"):
				o.Syscalls = true
			case *flipFull:
				o = flip.Options{Steps: 1, Values: flip.AllValues}
			case raceEnabled: // which is other code than what is shipped, and ten times as much
				o.Values = 2
			case name == "read one lane":
				o.Steps = 1
			}
			shmtest.Require(t, "children", flip.Possible())
			// What has a name outlives the child, which is killed in the end.
			dir, err := os.MkdirTemp(os.Getenv(shm.EnvDir), "flip")
			must(t, err)
			t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
			s := flip.Attack(t, shmtest.Child(t, "flip", envScene+"="+name, shm.EnvDir+"="+dir,
				"GORACE=atexit_sleep_ms=0"), o)
			t.Log(&s)
			if s.Loaded == 0 && !t.Failed() {
				t.Error("the call looks at none of the words")
			}
		})
	}
}

// selfMeet has a reader and a writer of this process meet.
func selfMeet(accept func(context.Context, *net.UnixConn) error,
	attach func(*net.UnixConn) error) error {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	a, err := socket(fds[0])
	need(err)
	defer a.Close()
	b, err := socket(fds[1])
	need(err)
	defer b.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- accept(ctx, a) }()
	err = attach(b)
	return errors.Join(err, <-done)
}

// outcome says what an error of a call means. What is none of these is broken.
func outcome(what string, err error) (o flip.Outcome) {
	o.Shape = what
	small := new(cq.TooSmallError)
	switch {
	case err == nil:
	case errors.As(err, &small):
		o.Shape += fmt.Sprintf(" needs %d", small.NeedBytes)
	case errors.Is(err, cq.ErrCorrupt):
		o.Poisoned = true
	case errors.Is(err, cq.ErrWouldBlock), errors.Is(err, cq.ErrAvail), errors.Is(err, cq.ErrFull),
		errors.Is(err, cq.ErrOverrun), errors.Is(err, cq.ErrClosed), errors.Is(err, cq.ErrPeerGone),
		errors.Is(err, syscall.EIO):
		o.Shape += " " + err.Error()
	default:
		o.Broken = fmt.Sprintf("%s: %T %v", what, err, err)
	}
	return o
}

// differ is 0 for words that are as they should be, and what they are for others.
func differ(is, want cq.Entry) []uint64 {
	data := make([]uint64, 0, 8)
	for _, w := range [][2]uint64{{is.Context, want.Context}, {uint64(is.Flags), uint64(want.Flags)},
		{is.Len, want.Len}, {uint64(is.Buf), uint64(want.Buf)}, {is.Data, want.Data},
		{is.Tag, want.Tag}, {is.Src.AddrPlus1, want.Src.AddrPlus1},
		{uint64(is.Meta), uint64(want.Meta)}} {
		if w[0] == w[1] {
			w[0] = 0
		}
		data = append(data, w[0])
	}
	return data
}
