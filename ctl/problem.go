package ctl

import (
	"cmp"
	"errors"
	"io/fs"
	"strings"

	"github.com/shmring/shmring/shm"
)

// Codes of problems, which are also what shmctl exits with.
const (
	CodeOK         = 0
	CodeFailure    = 1
	CodeUsage      = 2
	CodeNotFound   = 3
	CodePermission = 4
	CodeCheck      = 5 // a check found something wrong
	CodeVersion    = 6
)

// Problem is an error in the form that is printed. errors.Is finds what it was made of.
type Problem struct {
	Message string  `json:"message"`
	Hint    *string `json:"hint"` // what to do about it
	Code    int     `json:"code"`

	err error
}

// Error returns the message.
func (p *Problem) Error() string { return p.Message }

// Unwrap returns the error that the problem was made of: nil for one that was read from JSON, and
// for no problem.
func (p *Problem) Unwrap() error {
	if p == nil {
		return nil
	}
	return p.err
}

// NewProblem sorts an error into a code, and parts what is wrong from what to do about it. The
// message is one line of printable characters, whatever somebody wrote into shared memory.
func NewProblem(err error) *Problem {
	p := &Problem{Message: err.Error(), Code: code(err), err: err}
	var e *shm.Error
	if errors.As(err, &e) {
		// What is around it repeats what the caller knows: the name of the queue.
		p.Message = strings.TrimPrefix(e.Error(), cmp.Or(e.Pkg, "shm")+": ")
		if e.Hint != "" {
			p.Hint = &e.Hint
			p.Message = strings.TrimSuffix(p.Message, "; "+e.Hint)
		}
	}
	p.Message = shm.Printable(p.Message)
	return p
}

// code is that of an error.
func code(err error) int {
	switch {
	case errors.Is(err, shm.ErrName):
		return CodeUsage
	case errors.Is(err, fs.ErrNotExist):
		return CodeNotFound
	case errors.Is(err, fs.ErrPermission):
		return CodePermission
	case errors.Is(err, shm.ErrVersion):
		return CodeVersion
	}
	return CodeFailure
}
