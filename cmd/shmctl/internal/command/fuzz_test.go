package command

import (
	"strings"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/xdp/device"
)

// FuzzCommandLine: whatever words follow the program's name, the verb and its flags are found or
// refused in words. Nothing runs.
func FuzzCommandLine(f *testing.F) {
	for _, line := range []string{"ls -j --dir x", "show --all orders", "bench --", "help post", "-",
		"serve --dev eth0 --allow uid:1,ports=1-2 --interval 1s", "gc -r --persistent-too a",
		"capture eth0 --write - --duration 1h --snap -1", "torture hostile --seed 99999999999999999999",
		"post orders --len 0x10 --count 3", "__complete post ''", "check --watch=maybe", "tail -c="} {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line string) {
		cmd, rest, err := newRoot().Find(strings.Fields(line))
		if err == nil {
			err = cmd.ParseFlags(rest)
		}
		if err == nil {
			err = cmd.ValidateArgs(cmd.Flags().Args())
		}
		if err != nil && err.Error() == "" {
			t.Errorf("%q is refused without a word", line)
		}
	})
}

// FuzzFlagValues: what the flags of post and serve say is refused in words or is within bounds, and
// what is allowed is what its text says.
func FuzzFlagValues(f *testing.F) {
	f.Add("16", "RECV|MSG", "1+0x40", "EIO", "00ff", "uid:1000,ports=5000-5100,frames=512", "0")
	f.Add("0x", "", "65536+1", "-5", "0", "gid:4294967296", "all")
	f.Add("18446744073709551616", "NO_SUCH", "1+281474976710656", "x", "zz", "uid:1,ports=0", "70000")
	f.Add("1_000", "0x10", "+", "", "", "uid:1,frames=0,", "-1")
	f.Fuzz(func(t *testing.T, number, flags, ref, fault, detail, allow, queue string) {
		p := post{length: number, data: "0", tag: "0", flags: flags, buf: ref, fault: fault,
			detail: detail, count: 1}
		switch e, err := p.parse(); {
		case err != nil && err.Error() == "":
			t.Errorf("%+v is refused without a word", p)
		case err == nil && (len(e.ErrData) > cq.ErrDataMaxBytes || fault == "" && detail != "" ||
			e.Context != 0 || e.Flags&cq.FlagNoContext == 0):
			t.Errorf("%+v is %+v", p, e)
		}
		if r, err := parseRef(ref); err == nil && r != 0 {
			if again, err := parseRef(r.String()); err != nil || again != r {
				t.Errorf("%q is %v, and that is %v, %v", ref, r, again, err)
			}
		}
		s := serve{dev: "eth0", queue: queue, allow: []string{allow},
			frames: 1, every: time.Second}
		if err := s.configure(); err != nil {
			if err.Error() == "" {
				t.Errorf("%q and %q are refused without a word", allow, queue)
			}
			return
		}
		for _, a := range s.config.Allow {
			if again, err := device.ParseAllow(a.String()); err != nil || again != a {
				t.Errorf("%q is %v, and that is %v, %v", allow, a, again, err)
			}
		}
	})
}
