package cq

import (
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// ParseFlags turns text into flags, as [Flags.String] prints them or the manual writes them: names
// of any case, with or without FI_, and numbers, separated by bars, commas or spaces. What it does
// not know is ErrInvalid.
func ParseFlags(text string) (Flags, error) {
	var f Flags
	for word := range strings.FieldsFuncSeq(text, func(r rune) bool {
		return strings.ContainsRune("|,+ \t", r)
	}) {
		bit, ok := flagNamed(strings.TrimPrefix(strings.ToUpper(word), "FI_"))
		if n, err := strconv.ParseUint(word, 0, 64); err == nil {
			bit, ok = Flags(n), true
		}
		if !ok {
			return 0, refuse("parse", "", "flag", word, "one of "+strings.Join(FlagNames(), ", "),
				ErrInvalid)
		}
		f |= bit
	}
	return f, nil
}

func flagNamed(name string) (Flags, bool) {
	for _, n := range flagNames {
		if n.name == name {
			return n.flag, true
		}
	}
	return 0, false
}

// FlagNames returns the names of all flags, lowest bit first but for those of this library.
func FlagNames() []string {
	names := make([]string, len(flagNames))
	for i, n := range flagNames {
		names[i] = n.name
	}
	return names
}

// Names returns the names of the bits that are set and have one.
func (f Flags) Names() []string {
	var names []string
	for _, n := range flagNames {
		if f&n.flag != 0 {
			names = append(names, n.name)
		}
	}
	return names
}

var fabricNames = [...]string{"EOTHER", "ETOOSMALL", "EOPBADSTATE", "EAVAIL", "EBADFLAGS", "ENOEQ",
	"EDOMAIN", "ENOCQ", "ECRC", "ETRUNC", "ENOKEY", "ENOAV", "EOVERRUN", "ENORX", "ENOMR",
	"EFIREWALLADDR"}

// Name returns the number's name, as ETRUNC, or "" if it has none.
func (e Errno) Name() string {
	if i := int(e - EOther); i >= 0 && i < len(fabricNames) {
		return fabricNames[i]
	}
	if e <= 0 {
		return ""
	}
	return unix.ErrnoName(syscall.Errno(e))
}

// ParseErrno turns a name, with or without FI_, or a positive number into an error number. What it
// does not know is ErrInvalid.
func ParseErrno(text string) (Errno, error) {
	name := strings.TrimPrefix(strings.ToUpper(text), "FI_")
	for i, n := range fabricNames {
		if n == name {
			return EOther + Errno(i), nil
		}
	}
	for e := Errno(1); e < EOther; e++ {
		if name != "" && e.Name() == name {
			return e, nil
		}
	}
	n, err := strconv.ParseInt(text, 0, 32)
	if err != nil || n <= 0 {
		return 0, refuse("parse", "", "error number", text,
			"a name as ETRUNC or EIO, or a number above 0", ErrInvalid)
	}
	return Errno(n), nil
}
