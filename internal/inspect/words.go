package inspect

import (
	"math"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/kind"
)

// The words that tools print for numbers of package cq, and read again. They are those of the
// manual, of any case, with or without FI_, or numbers. What is not known is cq.ErrInvalid.

func refuse(what, text, want string) error {
	return kind.Refuse("parse", "", what, text, want, cq.ErrInvalid)
}

func manualWord(text string) string { return strings.TrimPrefix(strings.ToUpper(text), "FI_") }

// FlagNames returns the names of the bits that are set and have one, lowest bit first.
func FlagNames(f cq.Flags) []string {
	names := []string{}
	for bit := range 64 {
		if one := f & (1 << bit); one != 0 && !strings.HasPrefix(one.String(), "0x") {
			names = append(names, one.String())
		}
	}
	return names
}

// ParseFlags turns names and numbers, separated by bars, commas or spaces, into flags.
func ParseFlags(text string) (f cq.Flags, err error) {
	for word := range strings.FieldsFuncSeq(text, func(r rune) bool {
		return strings.ContainsRune("|,+ \t", r)
	}) {
		n, err := strconv.ParseUint(word, 0, 64)
		for bit := 0; bit < 64 && err != nil; bit++ {
			if one := cq.Flags(1) << bit; one.String() == manualWord(word) {
				n, err = uint64(one), nil
			}
		}
		if err != nil {
			return 0, refuse("flag", word, "one of "+
				strings.Join(FlagNames(math.MaxUint64), ", "))
		}
		f |= cq.Flags(n)
	}
	return f, nil
}

// eventWords are the names of libfabric's events, by number.
var eventWords = [...]string{"NOTIFY", "CONNREQ", "CONNECTED", "SHUTDOWN", "MR_COMPLETE",
	"AV_COMPLETE", "JOIN_COMPLETE"}

// EventName returns the event as ParseEvent reads it.
func EventName(k cq.EventKind) string {
	switch {
	case int(k) < len(eventWords):
		return eventWords[k]
	case k == cq.EventPeerDeath:
		return "PEER_DEATH"
	case k == cq.EventPeerNew:
		return "PEER_NEW"
	case k == cq.EventUser:
		return "USER"
	case k > cq.EventUser:
		return "USER+" + strconv.FormatUint(uint64(k-cq.EventUser), 10)
	}
	return strconv.FormatUint(uint64(k), 10)
}

// ParseEvent turns a name of the manual, PEER_DEATH, PEER_NEW, USER or USER+N, or a number into an
// event.
func ParseEvent(text string) (cq.EventKind, error) {
	name := manualWord(text)
	for k := range cq.EventKind(len(eventWords)) {
		if EventName(k) == name {
			return k, nil
		}
	}
	for _, k := range []cq.EventKind{cq.EventPeerDeath, cq.EventPeerNew, cq.EventUser} {
		if EventName(k) == name {
			return k, nil
		}
	}
	add, user := strings.CutPrefix(name, "USER+")
	if !user {
		add = text
	}
	n, err := strconv.ParseUint(add, 0, 32)
	switch {
	case err == nil && !user:
		return cq.EventKind(n), nil
	case err == nil && n <= uint64(math.MaxUint32-cq.EventUser):
		return cq.EventUser + cq.EventKind(n), nil
	}
	return 0, refuse("event", text, "one of "+strings.Join(eventWords[:], ", ")+
		", PEER_DEATH, PEER_NEW, USER, USER+N, or a number")
}

// ParseFID turns kind:id or kind:id:generation into an identifier. Kind is a name as
// cq.FIDKind.String prints it or a number, the others are numbers.
func ParseFID(text string) (cq.FID, error) {
	words := strings.Split(text, ":")
	wrong := refuse("identifier", text, "kind:id or kind:id:generation")
	if len(words) == 2 {
		words = append(words, "0")
	}
	if len(words) != 3 {
		return cq.FID{}, wrong
	}
	for k := range cq.FIDUser + 1 {
		if strings.EqualFold(k.String(), words[0]) {
			words[0] = strconv.Itoa(int(k))
		}
	}
	var n [3]uint64
	for i, w := range words {
		var err error
		if n[i], err = strconv.ParseUint(w, 0, 64); err != nil || i == 0 && n[i] > math.MaxUint32 {
			return cq.FID{}, wrong
		}
	}
	return cq.FID{Kind: cq.FIDKind(n[0]), ID: n[1], Generation: n[2]}, nil
}

var fabricNames = [...]string{"EOTHER", "ETOOSMALL", "EOPBADSTATE", "EAVAIL", "EBADFLAGS", "ENOEQ",
	"EDOMAIN", "ENOCQ", "ECRC", "ETRUNC", "ENOKEY", "ENOAV", "EOVERRUN", "ENORX", "ENOMR",
	"EFIREWALLADDR"}

// ErrnoName returns the number's name, as ETRUNC, or "" if it has none.
func ErrnoName(e cq.Errno) string {
	if i := int(e - cq.EOther); i >= 0 && i < len(fabricNames) {
		return fabricNames[i]
	}
	if e <= 0 {
		return ""
	}
	return unix.ErrnoName(syscall.Errno(e))
}

// ParseErrno turns a name or a number above 0 into an error number.
func ParseErrno(text string) (cq.Errno, error) {
	name := manualWord(text)
	for e := cq.Errno(1); e <= cq.EFirewallAddr; e++ {
		if name != "" && ErrnoName(e) == name {
			return e, nil
		}
	}
	n, err := strconv.ParseInt(text, 0, 32)
	if err != nil || n <= 0 {
		return 0, refuse("error number", text, "a name as ETRUNC or EIO, or a number above 0")
	}
	return cq.Errno(n), nil
}
