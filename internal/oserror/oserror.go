// Package oserror has errors that are also the operating system's number of the same meaning. Those
// of package cq, which are numbers of libfabric too, are in package kind.
package oserror

import "syscall"

type condition struct {
	text  string
	errno syscall.Errno
}

// New returns an error to be compared with errors.Is.
func New(text string, errno syscall.Errno) error { return &condition{text, errno} }

// Error returns the text.
func (c *condition) Error() string { return c.text }

// Is lets errors.Is find the error number and what the number itself stands for (fs.ErrPermission).
func (c *condition) Is(target error) bool {
	return target == error(c.errno) || c.errno.Is(target)
}
