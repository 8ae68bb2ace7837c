package shm

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxNameBytes is what a header can hold; a file name could be longer.
const maxNameBytes = 64

// Names that mean something.
const (
	// UserPrefix is what [DefaultPath] has before the number of the user.
	UserPrefix = "shmring-"
	// BellPrefix marks bells, which stand beside the queues: a queue called like one would hide it.
	BellPrefix = "bell-"
	// LockSuffix is that of the file whose lock a listener holds who replaces dead sockets by
	// himself, as a device process does: whoever has it is the only one to bind or remove the name.
	LockSuffix = ".lock"

	// asidePrefix and a UUID name a directory on its way to its own name.
	asidePrefix = "new-"
	// asideSuffix marks a socket that a collector has moved aside. Only who has locked the directory
	// gives or takes such a name, so that nothing can come to stand there while it is looked at.
	asideSuffix = "~collected"
)

// IsAside reports whether sub is the name of a queue's directory that has not got its own name yet.
// If the owner of such a queue is dead, nobody will ever look for it.
func IsAside(sub string) bool {
	id, ok := strings.CutPrefix(sub, asidePrefix)
	_, isUUID := parseUUID(id)
	return ok && isUUID
}

// checkName accepts names that are one visible path component and fit a header.
func checkName(op, name string) error {
	why := ""
	switch {
	case name == "":
		why = "give it at least one character"
	case len(name) > maxNameBytes:
		why = "use at most 64 bytes"
	case name[0] == '.':
		why = "let it not begin with a dot"
	case strings.ContainsRune(name, '/'):
		why = "leave out the slash: a name is not a path"
	case !utf8.ValidString(name) || strings.ContainsFunc(name, notPrintable):
		why = "use printable characters only"
	default:
		return nil
	}
	return &Error{Op: op, Name: name, Err: ErrName, Hint: why}
}

// checkNew refuses names that only this library gives, and nobody to an object of another kind.
func checkNew(op, name string, k Kind) error {
	if err := checkName(op, name); err != nil {
		return err
	}
	why := ""
	switch {
	case strings.HasPrefix(name, BellPrefix) && k != KindBell:
		why = `names that begin with "bell-" belong to bells`
	case IsAside(name):
		why = `"new-" and a UUID name what is not finished`
	case strings.HasSuffix(name, asideSuffix), strings.HasSuffix(name, LockSuffix):
		why = fmt.Sprintf("names that end in %q and %q belong to sockets", asideSuffix, LockSuffix)
	default:
		return nil
	}
	return &Error{Op: op, Name: name, Err: ErrName, Hint: why}
}

// checkSubName also keeps the names of bells free.
func checkSubName(op, name string) error {
	if err := checkName(op, name); err != nil {
		return err
	}
	if strings.HasPrefix(name, BellPrefix) {
		const why = `names that begin with "bell-" belong to bells`
		return &Error{Op: op, Name: name, Err: ErrName, Hint: why}
	}
	return nil
}

func notPrintable(r rune) bool { return !unicode.IsPrint(r) }

// Printable returns the text with everything escaped that a terminal or a log should not be given:
// control characters, and what is no UTF-8. It is for what others wrote or named.
func Printable(text string) string {
	if utf8.ValidString(text) && !strings.ContainsFunc(text, notPrintable) {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		if unicode.IsPrint(r) && r != utf8.RuneError {
			b.WriteRune(r)
		} else {
			b.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
		}
	}
	return b.String()
}
