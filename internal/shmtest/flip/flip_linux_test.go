package flip

import (
	"encoding/binary"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/shmtest"
)

const envTwice = "SHMRING_TEST_TWICE"

func TestMain(m *testing.M) {
	shmtest.Main(m, map[string]func(){"flip": func() { playLength(os.Getenv(envTwice)) }})
}

// playLength is a victim that takes as many bytes as a word says, if they are there. It looks at
// the word once, or again in one of two ways.
func playLength(twice string) {
	fd, err := unix.MemfdCreate("flip-test", unix.MFD_CLOEXEC)
	if err == nil {
		err = unix.Ftruncate(fd, 4096)
	}
	var mem []byte
	if err == nil {
		mem, err = unix.Mmap(fd, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	var found []*Object
	if err == nil {
		found, err = Mapped("memfd:flip-test")
	}
	if err != nil || len(found) != 1 {
		fmt.Fprintln(os.Stderr, found, err)
		os.Exit(3)
	}
	buf, n := make([]byte, 64), 0
	Play(Scene{
		Prepare: func() []Word {
			n = 0
			binary.LittleEndian.PutUint64(mem, 5)
			return []Word{found[0].at("length", 0), found[0].at("unused", 8)}
		},
		Call: func() {
			is := length(mem)
			if is > uint64(len(buf)) {
				n = -1
				return
			}
			switch twice {
			case "panic":
				n = len(buf[:length(mem)])
			case "tear":
				n = int(is + length(mem))
			default:
				n = len(buf[:is])
			}
		},
		Result: func() Outcome { return Outcome{Shape: fmt.Sprint(n)} },
	})
}

// recorder keeps what an attack finds.
type recorder struct {
	testing.TB
	found []string
}

func (r *recorder) Helper() {}
func (r *recorder) Errorf(format string, args ...any) {
	r.found = append(r.found, fmt.Sprintf(format, args...))
}

// TestAttackFindsSecondLoad: whoever looks once gives nothing to be found; who looks again is found
// by what comes of it, by debug registers and without them.
func TestAttackFindsSecondLoad(t *testing.T) {
	shmtest.Require(t, "children", Possible())
	for twice, want := range map[string]string{"": "", "panic": "panic: runtime error: slice bounds",
		"tear": "which no value gives that stays"} {
		for _, o := range []Options{{}, {blind: true}} {
			t.Run(fmt.Sprint(twice, " blind ", o.blind), func(t *testing.T) {
				r := &recorder{TB: t}
				s := Attack(r, shmtest.Child(t, "flip", envTwice+"="+twice), o)
				text := strings.Join(r.found, "\n")
				if (want == "") != (len(r.found) == 0) || !strings.Contains(text, want) {
					t.Errorf("found %s, want %q", text, want)
				}
				// Not every machine has debug registers that do something.
				if s.Words != 2 || s.Loads > 0 && (o.blind || s.Loaded != 1) ||
					(s.Loads > 0) == (s.Steps > 0) {
					t.Error(&s)
				}
			})
		}
	}
}

func TestJudge(t *testing.T) {
	constant := []Outcome{{Shape: "a", Data: []uint64{0, 7}}, {Shape: "b"}}
	for _, c := range []struct {
		o    Outcome
		want string
	}{
		{Outcome{Shape: "b"}, ""},
		{Outcome{Shape: "a", Data: []uint64{0, 7}}, ""},
		{Outcome{Shape: "a", Data: []uint64{9, 0}}, ""}, // a value that the word had
		{Outcome{Shape: "a", Data: []uint64{8, 0}}, "word 0"},
		{Outcome{Shape: "a"}, "no value"},
		{Outcome{Shape: "c"}, "no value"},
		{Outcome{Shape: "c", Poisoned: true}, ""},
		{Outcome{Poisoned: true, Broken: "panic"}, "panic"},
	} {
		got := c.o.judge(constant, 9)
		if (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%+v: %q, want %q", c.o, got, c.want)
		}
	}
}
