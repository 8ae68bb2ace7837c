package command

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/shmring/shmring/ctl"
)

var update = flag.Bool("update", false, "write the golden files anew")

func golden(t *testing.T, name string, lines []string) {
	t.Helper()
	path := filepath.Join("testdata", name+".golden")
	// Escapes are written so that an editor shows them.
	got := strings.ReplaceAll(strings.Join(lines, "\n")+"\n", "\x1b", "<ESC>")
	if *update {
		must(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	must(t, err)
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("%s (-want +got), go test -update writes it anew:\n%s", name, d)
	}
}

// samples are queues in every condition that is printed differently.
func samples() []ctl.Queue {
	orders := sample("orders", "alive")
	orders.PerSecond = &ctl.Rates{Posted: 1_204_000, Read: 1_203_456.7, Wakes: 3}
	orders.Posted, orders.Read = new(uint64(123_456_789)), new(uint64(123_456_700))
	full := sample("full", "alive")
	full.Lanes[1].Depth, full.Depth = new(uint64(8)), new(uint64(8))
	full.State, full.Lanes[1].State = new("full"), "full"
	full.SincePosted, full.SinceRead = &ctl.Since{Ns: 1_234_567}, &ctl.Since{Ns: 9e9, More: true}
	dead := sample("dead", "dead")
	dead.Reader.Command, dead.Reader.Alive, dead.State = nil, new(false), new("dead")
	left := sample("left", "released")
	left.State = new("released")
	stopped := sample("stopped", "alive")
	stopped.Reader.Stopped, stopped.State = new(true), new("stopped")
	lost := sample("lost", "alive")
	lost.State = new("overrun")
	lost.Lanes[1].Overrun, lost.Overruns = new(true), new(uint64(1))
	lost.Lanes[1].State = "overrun"
	lane := sample("lane", "alive")
	lane.Lanes[1] = ctl.Lane{Row: 1, State: "corrupt", Error: &ctl.Problem{Code: 1,
		Message: "size is 4096: cut", Hint: new("shmctl gc")}}
	lane.State = new("corrupt")
	broken := ctl.Queue{Name: "bro\tken", Path: "/dev/shm/x/bro\tken", State: new("corrupt"),
		Error: &ctl.Problem{Message: "magic is x, want y: damaged object", Code: 1}}
	return []ctl.Queue{orders, full, dead, left, stopped, lost, lane, broken}
}

func sample(name, life string) ctl.Queue {
	n := func(x uint64) *uint64 { return &x }
	p := ctl.Process{PID: new(4300), PIDNamespace: n(4026531836), Command: new("engine"),
		Alive: new(true), Life: &life}
	w := ctl.Process{PID: new(4211), PIDNamespace: n(4026531836), Command: new("feedd"),
		Alive: new(true), Life: new("alive")}
	made := time.Date(2026, 11, 21, 8, 0, 0, 123, time.UTC)
	none := ctl.Levels{Head: n(0), Peeked: n(0), Tail: n(0), Depth: n(0), Unreleased: n(0),
		HighWater: n(0), Posted: n(0), Read: n(0), Publishes: n(0), Wakes: n(0),
		WakesSuppressed: n(0), Refused: n(0)}
	some := ctl.Levels{Head: n(40), Peeked: n(42), Tail: n(43), Depth: n(3), Unreleased: n(2),
		HighWater: n(7), Posted: n(43), Read: n(40), Publishes: n(20), Wakes: n(4),
		WakesSuppressed: n(16), Refused: n(1)}
	own := ctl.Lane{Own: true, State: "open", Process: p, Generation: n(1), Levels: none,
		Overrun: new(false), Poisoned: new(false), Parked: new(true), Order: new("seq-cst"),
		SizeBytes: n(69632)}
	lane := ctl.Lane{Row: 1, State: "open", Process: w, Generation: n(3), Levels: some,
		Overrun: new(false), Poisoned: new(false), Parked: new(false), Order: new("release"),
		SizeBytes: n(8192)}
	return ctl.Queue{Name: name, Path: "/dev/shm/x/" + name, Kind: new("queue"),
		UUID: new("0001"), ABI: new("0.1"),
		Format: new("tagged"), Capacity: n(8), SlotBytes: n(64), MaxLanes: new(4),
		OverrunPolicy: new("back-pressure"), Lifetime: new("ephemeral"), WaitObject: new("unspec"),
		OrderPaidBy: new("reader"), State: new("open"), About: ctl.About{Generation: n(1),
			CreatedAt: &made, AgeNs: new(int64(83_456_789_012)), SizeBytes: n(77824),
			Owner: new("alice"), UID: new(uint32(1000)), Mode: new("0600")}, Reader: &p,
		Bell:   &ctl.Bell{Armed: true, Direct: true, Seq: 5, Rung: 4, Epoch: 9, ReadyLanes: 1},
		Levels: some, Overruns: n(0), Lanes: []ctl.Lane{own, lane}}
}

func TestTables(t *testing.T) {
	human, raw := &output{}, &output{raw: true, noHeader: true}
	once := sample("orders", "alive")
	golden(t, "ls", listLines([]ctl.Queue{once}, human, page{}))
	golden(t, "ls-watch", listLines(samples(), human, page{}))
	golden(t, "ls-raw", listLines(samples(), raw, page{}))
	golden(t, "ls-colour", listLines(samples(), human, page{style: style{on: true}}))
	all := samples()
	golden(t, "show", showLines([]ctl.Queue{all[0], all[6], all[7]}, human, page{}))
	golden(t, "show-raw-colour", showLines(all[:1], raw, page{style: style{on: true}}))
	golden(t, "ls-80", listLines(samples(), human, page{columns: 80}))
	golden(t, "ls-60", listLines(samples(), human, page{columns: 60}))
	golden(t, "show-80", showLines(all[:1], human, page{columns: 80}))
	golden(t, "ls-none", listLines(nil, human, page{}))
}

func TestScaled(t *testing.T) {
	o := &output{}
	for n, want := range map[uint64]string{0: "0", 99_999: "99999", 100_000: "100k",
		999_499: "999k", 999_500: "1.00M", 1_234_567: "1.23M", 12_345_678: "12.3M",
		1 << 63: "9.22E"} {
		if got := o.number(n); got != want {
			t.Errorf("number %d: %q, want %q", n, got, want)
		}
	}
	for n, want := range map[uint64]string{0: "0", 1023: "1023", 1024: "1KiB", 4096: "4KiB",
		1536: "1.5KiB", 77824: "76KiB", 1 << 20: "1MiB", 1<<20 + 1<<18: "1.25MiB",
		1 << 40: "1TiB"} {
		if got := o.bytes(n); got != want {
			t.Errorf("bytes %d: %q, want %q", n, got, want)
		}
	}
	raw := &output{raw: true}
	if raw.number(1<<40) != "1099511627776" || raw.bytes(1<<20) != "1048576" ||
		raw.rate(1234567.8) != "1234568" {
		t.Error("raw numbers are not in full")
	}
}

func TestCut(t *testing.T) {
	const red, plain = escRed, escPlain
	for _, c := range []struct {
		line    string
		columns int
		want    string
	}{
		{"", 3, ""}, {"abc", 3, "abc"}, {"abcd", 3, "abc"}, {"äöüß", 3, "äöü"},
		{red + "abc" + plain, 3, red + "abc" + plain},
		{"a" + red + "bcd" + plain, 3, "a" + red + "bc" + plain},
		{"ab\x1b[3", 5, "ab"}, {"abc", 0, ""},
	} {
		if got := cut(c.line, c.columns); got != c.want {
			t.Errorf("cut(%q, %d) = %q, want %q", c.line, c.columns, got, c.want)
		}
	}
}
