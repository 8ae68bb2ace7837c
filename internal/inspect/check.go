// Package inspect looks at the objects of queues, counters, address vectors and bells from outside,
// by read-only mappings: nobody waits for it or notices. Package ctl is its face.
//
// # Files
//
//	check    invariants, one object, and names for numbers of package cq
//	queue    the memory of a queue for as long as somebody looks, and what must hold in it
//	object   what stands beside the queues
//	fabric   of that, endpoints and their outboxes
//	held     what a process has, whatever names that has
package inspect

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/shm"
)

// Invariants returns those of queues and of what stands beside them, beyond [shm.Invariants].
//
// What is not among them, because a process that dies may leave it undone and nobody needs it: that
// a summary bit stands for every ready bit of a bell, that an index entry stands for every address
// while the owner of the vector lives or died, that the last solicited entry is marked so.
func Invariants() []shm.Invariant {
	return []shm.Invariant{
		{Name: "object.name", Exact: true, What: "the header has the name of the object"},
		{Name: "object.attributes", Exact: true, What: "every attribute is possible for the kind"},
		{Name: "object.sections", Exact: true, What: "the sections are those that the kind has"},
		{Name: "object.seals", What: "nobody can truncate an object that has no name"},

		{Name: "queue.entry", Exact: true, What: "only a queue's own files are in its directory"},
		{Name: "queue.kind", Exact: true, What: "the reader's object is a queue's, a lane's a lane"},
		{Name: "queue.armed", Exact: true, What: "only known bits of the armed word are set"},
		{Name: "queue.state", Exact: true, What: "the state is one of those that there are"},
		{Name: "queue.face", Exact: true, What: "the reader's descriptor number is possible"},
		{Name: "queue.face_generation", Exact: true, What: "it is of no reader yet to come"},
		{Name: "queue.no_barrier", Exact: true, What: "it is of no reader yet to come"},
		{Name: "queue.bell", Exact: true, What: "a bit in a bell is possible, and the bell has a uuid"},
		{Name: "queue.bell_generation", Exact: true, What: "it is of no reader yet to come"},
		{Name: "hints.latch", Exact: true, What: "a signal is pending or not"},
		{Name: "hints.ready", Exact: true, What: "no lane is ready that there cannot be"},
		{Name: "row.parked", Exact: true, What: "only known bits of a row's flags are set"},
		{Name: "row.head", Exact: true, What: "nothing was released that was not published"},
		{Name: "row.peeked", Exact: true, What: "nothing was handed out that was not published"},
		{Name: "row.high_water", Exact: true, What: "no more ever waited than a lane holds"},
		{Name: "row.retired", Exact: true, What: "a queue of one user retires no lanes"},
		{Name: "lane.tail", Exact: true, What: "no more is published than the lane holds"},
		{Name: "lane.solicited", Exact: true, What: "the last solicited entry has a place"},
		{Name: "lane.error", Exact: true, What: "the last error entry has a place"},
		{Name: "lane.order", Exact: true, What: "the order of publishes is one of the two"},
		{Name: "lane.overrun", Exact: true, What: "a lane overran at its tail, where it may overrun"},
		{Name: "lane.epoch", Exact: true, What: "who wrote what is told of writers that were"},
		{Name: "slot.sequence", Exact: true, What: "an unread entry has the number of its place"},
		{Name: "slot.kind", Exact: true, What: "it is a completion or an error"},
		{Name: "slot.marks", Exact: true, What: "only known marks of it are set"},
		{Name: "slot.payload", Exact: true, What: "an event's payload fits its record"},
		{Name: "detail.data", Exact: true, What: "an error's detail fits its record"},

		{Name: "bell.armed", Exact: true, What: "only known bits of the armed word are set"},
		{Name: "counter.standing", Exact: true, What: "some handle found no seat or none did"},
		{Name: "counter.seats", Exact: true, What: "no more seats were taken than there are"},
		{Name: "counter.rung", Exact: true, What: "no arming was answered that did not happen"},
		{Name: "counter.handle", Exact: true, What: "a handle's process number is possible"},

		{Name: "umem.geometry", Exact: true, What: "the frames are as many and as large as it says"},
		{Name: "device.layout", Exact: true, What: "the sections are those of a status page"},
		{Name: "device.update", Exact: true, What: "no update of counts ended that did not begin"},
		{Name: "device.returned", Exact: true, What: "no frame came back that was not handed out"},
		{Name: "device.frames", Exact: true, What: "no more frames are out than there are"},

		{Name: "endpoint.state", Exact: true, What: "the endpoint is open or closed"},
		{Name: "endpoint.armed", Exact: true, What: "only known bits of the armed word are set"},
		{Name: "endpoint.owner", Exact: true, What: "a row is that of a lane that there can be"},
		{Name: "endpoint.granted", Exact: true, What: "no grant was taken back"},
		{Name: "endpoint.owed", Exact: true, What: "records wait for room or do not"},
		{Name: "endpoint.record", Exact: true, What: "a record asks for what a lane can have"},
		{Name: "endpoint.region", Exact: true, What: "a key reaches memory of its endpoint"},
		{Name: "endpoint.lane", Exact: true, What: "the lane of a row has the row's number"},
		{Name: "endpoint.head", Exact: true, What: "nothing was examined that was not sent"},
		{Name: "endpoint.control", Exact: true, What: "a control ring holds what it has room for"},
		{Name: "endpoint.type", Exact: true, What: "its messages are datagrams or are not"},
		{Name: "outbox.lane", Exact: true, What: "the number of a lane names its outbox and place"},
		{Name: "outbox.done", Exact: true, What: "who is done was done with a lane of the place"},
		{Name: "outbox.slots", Exact: true, What: "a lane's slots are of its outbox"},
		{Name: "outbox.order", Exact: true, What: "the order of publishes is one of the two"},
		{Name: "outbox.sequence", Exact: true, What: "a slot has a number of its place"},
		{Name: "outbox.slot", Exact: true, What: "a slot holds what there is, as long as it can be"},
		{Name: "outbox.pool", Exact: true, What: "payload that a slot names begins in the pool"},
		{Name: "outbox.type", Exact: true, What: "messages of a lane are datagrams or are not"},
		{Name: "group.member", Exact: true, What: "a member can be an endpoint"},
		{Name: "group.seat", Exact: true, What: "the process of a seat is possible"},

		{Name: "addresses.state", Exact: true, What: "the vector is open or closed"},
		{Name: "addresses.row", Exact: true, What: "a row that is used has an address of the format"},
		{Name: "addresses.cell", What: "an index cell leads to a row with an address of its hash"},
		{Name: "addresses.found", What: "a row that is used is found by the index"},
		{Name: "addresses.twice", What: "no address has two rows"},
		{Name: "addresses.used", What: "as many rows are used as is said"},
	}
}

// Checked is what was found in one file.
type Checked struct {
	Name       string // of an object that a process holds
	Path       string
	Inode      uint64   // the same
	Kind       shm.Kind // 0: not known
	Violations []shm.Violation
	// Undecided: the object changed all the time, so that only what is exact was checked.
	Undecided bool
}

// checker collects what is wrong with one object.
type checker struct {
	obj   *shm.Object
	held  *Held  // nil: the object stands in a directory
	dir   string // which is that, if others of it are to be looked at
	found []shm.Violation
	busy  bool
}

// wrong notes a violation in a word of the object's memory.
func wrong[T any](c *checker, word *T, name string, got, want any) {
	at := kind.Offset(c.obj.Bytes(), word)
	v := shm.Violation{Invariant: name, Offset: at, Got: fmt.Sprint(got), Want: fmt.Sprint(want)}
	for _, s := range c.obj.Header().Sections {
		if at >= s.Offset && at < s.Offset+s.Length {
			v.Section, v.Within = kind.SectionNames[s.Kind], at-s.Offset
		}
	}
	c.found = append(c.found, v)
}

// badHeader notes one in page 0.
func (c *checker) badHeader(name string, off uint64, got, want any) {
	c.found = append(c.found, shm.Violation{Invariant: name, Section: "header", Offset: off,
		Within: off, Got: fmt.Sprint(got), Want: fmt.Sprint(want)})
}

// Where the header has what the kinds fix, as package shm draws it.
const (
	headerBytes    = 4096
	headerTotal    = 0x18
	headerUUID     = 0x38
	headerCount    = 0x8c
	headerName     = 0x90
	headerAttrs    = 0x100
	headerSections = 0x180
	headerTurn     = 0xa80 // its low bit says which record of the owner holds
	headerOwner    = 0xb00
	headerOwners   = 128 // bytes of a record
)

// attributes checks each attribute of the object.
func (c *checker) attributes(all kind.Attributes) bool {
	before := len(c.found)
	all.Wrong(c.obj.Header(), func(word int, a kind.Attribute, got uint64) {
		c.badHeader("object.attributes", headerAttrs+8*uint64(word), got, a.Bound.String())
	})
	return len(c.found) == before
}

// sections checks that the object has those of its kind.
func (c *checker) sections(want shm.Spec) bool {
	before := len(c.found)
	have := c.obj.Header().Sections
	if len(have) != len(want.Sections) {
		c.badHeader("object.sections", headerCount, len(have), len(want.Sections))
		return false
	}
	for i, w := range want.Sections {
		got := have[i]
		for _, f := range []struct {
			off       uint64
			got, want uint64
		}{{0, uint64(got.Kind), uint64(w.Kind)}, {4, uint64(got.ID), uint64(w.ID)},
			{16, got.Length, w.Length}, {24, got.ElemSize, w.ElemSize},
			{32, got.Capacity, w.Capacity}, {40, got.LayoutHash, w.LayoutHash}} {
			if f.got != f.want {
				c.badHeader("object.sections", headerSections+64*uint64(i)+f.off, f.got, f.want)
			}
		}
	}
	return len(c.found) == before
}

// named checks the name in the header. A queue that is made aside has its own name there already,
// and what a process holds need not have a name any more.
func (c *checker) named(want string) {
	if c.held != nil {
		return
	}
	if got := c.obj.Header().Name; got != want && !shm.IsAside(want) {
		c.badHeader("object.name", headerName, fmt.Sprintf("%q", got), fmt.Sprintf("%q", want))
	}
}

// IsObject reports whether a file claims to be an object, by its first bytes or by its size.
func IsObject(path string) (is bool, err error) {
	err = withPage(path, func(_ int, page []byte, size uint64) error {
		v := shm.CheckHeader(page, size)
		is = len(v) != 1 || v[0].Invariant != "header.magic" && size >= uint64(os.Getpagesize())
		return nil
	})
	return is, err
}

// withPage opens a file, no link, and hands on what its page 0 holds, and how large the file is.
func withPage(path string, f func(fd int, page []byte, size uint64) error) error {
	// O_NONBLOCK keeps a FIFO that came to stand there from blocking us.
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	fd := int(file.Fd())
	page, size, err := ReadPage(fd, path)
	if err != nil {
		return err
	}
	return f(fd, page, size)
}

// checkPath checks page 0 of a file, and hands it on if nothing is wrong there. A file that is gone
// is fs.ErrNotExist.
func checkPath(path string, f func(*checker)) (out Checked, err error) {
	out.Path = path
	err = withPage(path, func(fd int, page []byte, size uint64) (err error) {
		out, err = checkFile(out, fd, page, size, f)
		return err
	})
	return out, err
}

// checkFile checks a copy of page 0, and the object behind the descriptor.
func checkFile(out Checked, fd int, page []byte, size uint64, f func(*checker)) (Checked, error) {
	if out.Violations = shm.CheckHeader(page, size); len(out.Violations) > 0 {
		return out, nil
	}
	obj, err := shm.OpenFD(fd, out.Path, shm.Inspect)
	var e *shm.Error
	if errors.As(err, &e) && e.Field == "allocated bytes" {
		out.Violations = []shm.Violation{{Invariant: "file.memory", Section: "header",
			Offset: headerTotal, Within: headerTotal, Got: fmt.Sprint(e.Got), Want: fmt.Sprint(e.Want)}}
		return out, nil
	}
	if err != nil {
		return out, err
	}
	defer obj.Close()
	c := &checker{obj: obj}
	out.Kind = obj.Header().Kind
	// Whoever owns the file may truncate it at any moment.
	if err := shm.Guard(func() { f(c) }); err != nil {
		return out, err
	}
	c.ownerLock()
	out.Violations, out.Undecided = c.found, c.busy
	return out, nil
}

// ownerLock says what is wrong between the owner's record and the lock.
func (c *checker) ownerLock() {
	if life, err := c.obj.Life(); err != nil || life != shm.LockLost {
		return
	}
	_ = shm.Guard(func() {
		turn := kind.Overlay[atomic.Uint64](c.obj.Bytes()[headerTurn:]).Load()
		c.badHeader("owner.lock", headerOwner+turn&1*headerOwners,
			fmt.Sprintf("free, and process %d lives", c.obj.Owner().PID), "held")
	})
}

// ReadPage copies page 0 of the file behind a descriptor, which may be no object, and tells how
// large the file is. What is no regular file is [shm.ErrKind].
func ReadPage(fd int, name string) (page []byte, fileBytes uint64, err error) {
	var file unix.Stat_t
	if err := unix.Fstat(fd, &file); err != nil {
		return nil, 0, &shm.Error{Op: "read", Name: name, Err: err}
	}
	if file.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, 0, &shm.Error{Op: "read", Name: name, Field: "type", Got: "not a regular file",
			Want: "an object", Err: shm.ErrKind, Hint: "remove it"}
	}
	page = make([]byte, headerBytes)
	n, err := unix.Pread(fd, page, 0)
	if err != nil {
		return nil, 0, &shm.Error{Op: "read", Name: name, Err: err}
	}
	return page[:n], uint64(max(file.Size, 0)), nil
}

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
