package kind

import (
	"errors"
	"slices"
	"syscall"

	"github.com/shmring/shmring/shm"
)

// Pkg is what errors are said to be of: who uses the library knows no other package that has
// queues.
const Pkg = "cq"

// Sentinel is an error that is also the number of the same meaning. Comparing one costs nothing and
// making one never allocates.
type Sentinel struct {
	Text string
	Num  error   // syscall.Errno, or one of libfabric's
	Also []error // sentinels of the same meaning
}

// NewSentinel returns one. num is a syscall.Errno, or an error number of libfabric.
func NewSentinel(text string, num error, also []error) *Sentinel {
	return &Sentinel{Text: text, Num: num, Also: also}
}

// Error returns the text.
func (s *Sentinel) Error() string { return Pkg + ": " + s.Text }

// Is reports a match with a number or sentinel of the same meaning. Sentinels that share a number
// are not the same. A number of libfabric's knows itself which sentinels it is.
func (s *Sentinel) Is(target error) bool {
	if slices.Contains(s.Also, target) {
		return true
	}
	if _, other := target.(*Sentinel); other {
		return false
	}
	number, ok := target.(interface{ Is(target error) bool })
	return errors.Is(s.Num, target) || ok && number.Is(s)
}

// ErrCorrupt: a peer wrote what it must not (EBADMSG).
var ErrCorrupt error = &Sentinel{"peer wrote an impossible value", syscall.EBADMSG,
	[]error{shm.ErrCorrupt}}

// Refuse returns an error that says which value was refused.
func Refuse(op, name, field string, got, want any, err error) error {
	return &shm.Error{Pkg: Pkg, Op: op, Name: name, Field: field, Got: got, Want: want, Err: err}
}
