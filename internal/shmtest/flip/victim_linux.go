package flip

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/shm"
)

// Scene is what a victim plays, again and again.
type Scene struct {
	// Prepare makes everything as it is before the call, and says what the peer may write.
	Prepare func() []Word
	Call    func()
	Result  func() Outcome
}

// Signals by which a victim tells its tracer where the call begins and ends. No handler ever sees
// them.
const (
	signalBegin = unix.SIGUSR1
	signalEnd   = unix.SIGUSR2
)

// Play plays a scene until the tracer closes its pipe. The goroutine has its thread to itself.
func Play(s Scene) {
	debug.SetGCPercent(-1)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	in, pid, tid := bufio.NewReader(os.Stdin), os.Getpid(), unix.Gettid()
	out := json.NewEncoder(os.Stdout)
	fmt.Println(tid)
	for n := 1; ; n++ {
		if _, err := in.ReadString('\n'); err != nil {
			return
		}
		if n%256 == 0 {
			runtime.GC()
		}
		_ = out.Encode(s.Prepare())
		if _, err := in.ReadString('\n'); err != nil { // until somebody traces the thread
			return
		}
		broken := attacked(s.Call, uintptr(pid), uintptr(tid))
		o := s.Result()
		if broken != "" {
			o.Broken = broken
		}
		_ = out.Encode(o)
	}
}

func attacked(call func(), pid, tid uintptr) (broken string) {
	defer func() {
		if r := recover(); r != nil {
			_, _, _ = unix.RawSyscall(unix.SYS_TGKILL, pid, tid, uintptr(signalEnd))
			broken = fmt.Sprintf("panic: %v\n%s", r, debug.Stack())
		}
	}()
	_, _, _ = unix.RawSyscall(unix.SYS_TGKILL, pid, tid, uintptr(signalBegin))
	call()
	_, _, _ = unix.RawSyscall(unix.SYS_TGKILL, pid, tid, uintptr(signalEnd))
	return ""
}

// Object is an object that this process has mapped, as the kernel shows it.
type Object struct {
	path, inode string
	maps        []mapping
	header      *shm.Header
}

type mapping struct {
	from, to, offset uint64
	writable         bool
}

// Added returns the objects that a function mapped, of those whose path contains a text.
func Added(text string, f func() error) ([]*Object, error) {
	before, err := Mapped(text)
	if err == nil {
		err = f()
	}
	if err != nil {
		return nil, err
	}
	after, err := Mapped(text)
	return slices.DeleteFunc(after, func(o *Object) bool {
		return slices.ContainsFunc(before, func(b *Object) bool { return b.inode == o.inode })
	}), err
}

// AddedWith is Added for the one object among those that has a section of a kind, with the id that
// the function returns.
func AddedWith(text string, kind shm.SectionKind, f func() (id int, err error)) (*Object, error) {
	var id int
	added, err := Added(text, func() (err error) {
		id, err = f()
		return err
	})
	if err != nil {
		return nil, err
	}
	o, err := find(added, func(h *shm.Header) bool {
		return slices.ContainsFunc(h.Sections, func(s shm.Section) bool {
			return s.Kind == kind && s.ID == uint32(id)
		})
	})
	if o == nil && err == nil {
		err = fmt.Errorf("none of %d new objects has section %#x/%d", len(added), uint32(kind), id)
	}
	return o, err
}

// Of returns the one of mapped objects that is of a kind, and whose header has a name.
func Of(all []*Object, kind shm.Kind, name string) (*Object, error) {
	o, err := find(all, func(h *shm.Header) bool { return h.Kind == kind && h.Name == name })
	if o == nil && err == nil {
		err = fmt.Errorf("none of %d objects is the %v of %s", len(all), kind, name)
	}
	return o, err
}

// Own is the object by the mapping of its maker alone, which is all there is that can be written.
func (o *Object) Own() *Object {
	own := *o
	own.maps = slices.DeleteFunc(slices.Clone(o.maps), func(m mapping) bool {
		return m.offset != 0 || !m.writable
	})
	return &own
}

func find(all []*Object, is func(h *shm.Header) bool) (*Object, error) {
	for _, o := range all {
		h, err := o.readHeader()
		if err != nil {
			return nil, err
		}
		if is(h) {
			return o, nil
		}
	}
	return nil, nil
}

// Mapped returns the objects whose path contains a text.
func Mapped(text string) ([]*Object, error) {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return nil, err
	}
	var all []*Object
	for line := range strings.Lines(string(maps)) {
		if !strings.Contains(line, text) {
			continue
		}
		f := strings.Fields(line)
		if len(f) < 6 || !strings.Contains(f[5], text) {
			continue
		}
		var m mapping
		if _, err := fmt.Sscanf(f[0]+" "+f[2], "%x-%x %x", &m.from, &m.to, &m.offset); err != nil {
			return nil, err
		}
		m.writable = f[1][1] == 'w'
		at := slices.IndexFunc(all, func(o *Object) bool { return o.inode == f[4] })
		if at < 0 {
			at, all = len(all), append(all, &Object{path: f[5], inode: f[4]})
		}
		all[at].maps = append(all[at].maps, m)
	}
	return all, nil
}

// Words returns words of a section, by their offsets in it.
func (o *Object) Words(name string, kind shm.SectionKind, id uint32,
	offsets ...uint64) ([]Word, error) {
	h, err := o.readHeader()
	if err != nil {
		return nil, err
	}
	for _, s := range h.Sections {
		if s.Kind == kind && s.ID == id {
			var words []Word
			for _, at := range offsets {
				words = append(words, o.at(fmt.Sprintf("%s+%d", name, at), s.Offset+at))
			}
			return words, nil
		}
	}
	return nil, fmt.Errorf("%s has no section %#x/%d", o.path, uint32(kind), id)
}

func (o *Object) at(name string, offset uint64) Word {
	w := Word{Name: name}
	for _, m := range o.maps {
		if at := m.from + offset - m.offset; offset >= m.offset && at < m.to {
			w.Watch = append(w.Watch, at)
			if m.writable {
				w.Poke = at
			}
		}
	}
	return w
}

func (o *Object) readHeader() (*shm.Header, error) {
	if o.header != nil {
		return o.header, nil
	}
	mem, err := os.Open("/proc/self/mem")
	if err != nil {
		return nil, err
	}
	defer mem.Close()
	page, size := make([]byte, 4096), uint64(0)
	for _, m := range o.maps {
		if m.offset == 0 {
			_, err = mem.ReadAt(page, int64(m.from))
		}
		size = max(size, m.offset+m.to-m.from)
	}
	if err != nil {
		return nil, err
	}
	h, err := shm.DecodeHeader(page, size)
	o.header = &h
	return o.header, err
}

// Header returns a word of the page that describes the object.
func (o *Object) Header(offset uint64) Word { return o.at(fmt.Sprint("header+", offset), offset) }
