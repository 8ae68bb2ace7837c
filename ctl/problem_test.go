package ctl_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"testing"

	"github.com/shmring/shmring/ctl"
	"github.com/shmring/shmring/shm"
)

func TestCode(t *testing.T) {
	for err, want := range map[error]int{
		errors.New("x"): 1, shm.ErrCorrupt: 1, shm.ErrTruncated: 1, shm.ErrName: 2,
		fs.ErrNotExist: 3, syscall.ENOENT: 3, shm.ErrOwner: 4, os.ErrPermission: 4,
		syscall.EACCES: 4, shm.ErrVersion: 6,
		&shm.Error{Op: "open", Err: shm.ErrVersion}: 6,
	} {
		if got := ctl.NewProblem(fmt.Errorf("wrapped: %w", err)).Code; got != want {
			t.Errorf("%v: %d, want %d", err, got, want)
		}
	}
}

func TestProblem(t *testing.T) {
	err := fmt.Errorf("cq: inspect: %w", &shm.Error{Op: "open", Name: "reader", Field: "magic",
		Got: "\x1b[2J\xff\n", Want: "shmring", Err: shm.ErrCorrupt, Hint: "remove it"})
	p := ctl.NewProblem(err)
	const want = `open "reader": magic is \x1b[2J\ufffd\n, want shmring: damaged object`
	if p.Message != want || p.Hint == nil || *p.Hint != "remove it" || p.Code != 1 {
		t.Errorf("%+v, want %s", p, want)
	}
	var none *ctl.Problem
	if !errors.Is(p, shm.ErrCorrupt) || errors.Is(p, shm.ErrVersion) || errors.Is(none, err) {
		t.Errorf("%+v is made of %v", p, err)
	}
	if p := ctl.NewProblem(errors.New("plain")); p.Message != "plain" || p.Hint != nil {
		t.Errorf("%+v", p)
	}
}
