package cq

import (
	"math"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/kind"
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
			return 0, kind.Refuse("parse", "", "flag", word, "one of "+strings.Join(FlagNames(), ", "),
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

// eventWords are the names of libfabric's events, by number.
var eventWords = [...]string{"NOTIFY", "CONNREQ", "CONNECTED", "SHUTDOWN", "MR_COMPLETE",
	"AV_COMPLETE", "JOIN_COMPLETE"}

// ParseEventKind turns text into an event: a name of the manual, of any case, with or without FI_;
// PEER_DEATH; PEER_NEW; USER or USER+N; or a number. What it does not know is ErrInvalid.
func ParseEventKind(text string) (EventKind, error) {
	name := strings.TrimPrefix(strings.ToUpper(text), "FI_")
	for i, w := range eventWords {
		if w == name {
			return EventKind(i), nil
		}
	}
	word, add, more := strings.Cut(name, "+")
	switch {
	case name == "PEER_DEATH":
		return EventPeerDeath, nil
	case name == "PEER_NEW":
		return EventPeerNew, nil
	case word == "USER" && !more:
		return EventUser, nil
	case word == "USER":
		n, err := strconv.ParseUint(add, 0, 32)
		if err == nil && n <= uint64(math.MaxUint32-EventUser) {
			return EventUser + EventKind(n), nil
		}
	default:
		if n, err := strconv.ParseUint(text, 0, 32); err == nil {
			return EventKind(n), nil
		}
	}
	return 0, kind.Refuse("parse", "", "event", text, "one of "+strings.Join(eventWords[:], ", ")+
		", PEER_DEATH, PEER_NEW, USER, USER+N, or a number", ErrInvalid)
}

// Name returns the event as ParseEventKind reads it.
func (k EventKind) Name() string {
	switch {
	case int(k) < len(eventWords):
		return eventWords[k]
	case k == EventPeerDeath:
		return "PEER_DEATH"
	case k == EventPeerNew:
		return "PEER_NEW"
	case k == EventUser:
		return "USER"
	case k > EventUser:
		return "USER+" + strconv.FormatUint(uint64(k-EventUser), 10)
	}
	return strconv.FormatUint(uint64(k), 10)
}

// ParseFID turns kind:id or kind:id:generation into an identifier; kind is a name as FIDKind.String
// prints it or a number, the others are numbers. What it does not know is ErrInvalid.
func ParseFID(text string) (f FID, err error) {
	words := strings.Split(text, ":")
	if len(words) == 2 || len(words) == 3 {
		var kind, ok = uint64(0), false
		for i, name := range fidNames {
			if strings.EqualFold(name, words[0]) {
				kind, ok = uint64(i), true
			}
		}
		if !ok {
			kind, err = strconv.ParseUint(words[0], 0, 32)
		}
		id, err2 := strconv.ParseUint(words[1], 0, 64)
		var generation uint64
		if len(words) == 3 && err2 == nil {
			generation, err2 = strconv.ParseUint(words[2], 0, 64)
		}
		if err == nil && err2 == nil {
			return FID{Kind: FIDKind(kind), ID: id, Generation: generation}, nil
		}
	}
	return FID{}, kind.Refuse("parse", "", "identifier", text, "kind:id or kind:id:generation",
		ErrInvalid)
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
		return 0, kind.Refuse("parse", "", "error number", text,
			"a name as ETRUNC or EIO, or a number above 0", ErrInvalid)
	}
	return Errno(n), nil
}
