package bench

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/testdata"
	"github.com/shmring/shmring/xdp"
)

// needWire skips where there are no interfaces of our own, or no AF_XDP on them.
func needWire(t *testing.T) {
	t.Helper()
	needTwo(t)
	w, err := openCable()
	shmtest.Require(t, "netns", err)
	defer w.close()
	shmtest.Require(t, "xdp", w.refuse(xdp.AttachNative))
}

// TestXDPMeasuresEveryCase: packets come through both ways with every kind of socket, and each one
// once, or a child would have said so.
func TestXDPMeasuresEveryCase(t *testing.T) {
	shmtest.Long(t)
	needWire(t)
	o := short(needCompiler(t))
	o.Pairs = 1
	o = benchOf(t, "xdp").options(o)
	var once []benchCase // each thing that a process can be told
	told := map[string]bool{}
	for _, c := range benchOf(t, "xdp").cases(o) {
		if told := named(c.ours); told.mode() == xdp.AttachGeneric && told.verb != "echo" {
			continue // the other programs are those of echo
		}
		ours, rival := told[c.ours], told[c.rivalName+c.rival]
		if told[c.ours], told[c.rivalName+c.rival] = true, true; !ours || !rival {
			once = append(once, c)
		}
	}
	rows := shmtest.Got(measure(t.Context(), o, once)).Or(t)
	if len(rows) != len(once) {
		t.Errorf("%d rows of %d: %q", len(rows), len(once), names(rows))
	}
	for _, r := range rows {
		p := r.Packets
		if p == nil || p.OursCPU == nil || p.RivalCPU == nil {
			t.Errorf("%s: %+v", r.Case, p)
			continue
		}
		if p.CountingError != "" {
			t.Logf("%s: %s", r.Case, p.CountingError)
		}
	}
}

// wireCase returns the case of a name that is measured against C.
func wireCase(t *testing.T, name string, batch int) benchCase {
	t.Helper()
	cases := benchOf(t, "xdp").cases(Options{Batches: []int{batch}})
	return cases[slices.IndexFunc(cases, func(c benchCase) bool { return c.name == name })]
}

// TestWireAllocatesNothing: what the runtime allocates for itself does not grow with the packets.
func TestWireAllocatesNothing(t *testing.T) {
	needWire(t)
	b := newTestBencher(t)
	t.Cleanup(b.closeWires)
	for _, name := range shmtest.Some(1, []string{"drop", "drain", "echo"}) {
		t.Run(name, func(t *testing.T) {
			c := wireCase(t, name, 32)
			c.rivalOurs, c.rival = true, c.ours
			shmtest.Must(t, b.prepareWires(c))
			ours, rival, err := b.sides(t.Context(), c)
			shmtest.Must(t, err)
			defer ours.duo.close()
			rival.duo.close()
			var each []float64
			for range 5 {
				_, o, err := b.round(t.Context(), c, ours, 20000)
				shmtest.Must(t, err)
				each = append(each, o.allocs)
			}
			if least := slices.Min(each); least > 0.01 {
				t.Errorf("%v allocations a packet", each)
			}
		})
	}
}

// TestSyscallsAreCounted: one packet at a time takes one call each.
func TestSyscallsAreCounted(t *testing.T) {
	needWire(t)
	b := newTestBencher(t)
	t.Cleanup(b.closeWires)
	c := wireCase(t, "drop", 1)
	c.rivalOurs, c.rival = true, "udpconn-drop"
	shmtest.Must(t, b.prepareWires(c))
	ours, rival, err := b.sides(t.Context(), c)
	shmtest.Must(t, err)
	defer ours.duo.close()
	defer rival.duo.close()
	counter, err := countSyscalls(ours, rival)
	shmtest.Require(t, "bpf", err)
	defer counter.close()
	for _, s := range []*side{ours, rival} {
		// The runtime makes some of its own, on a machine that is busy as many as there are packets:
		// then the best of a few rounds counts.
		most := 0.0
		for n := 0; n < 10 && most < 0.5; n++ {
			per := shmtest.Got(b.perCall(t.Context(), c, counter, s, 20000)).Or(t)
			if per == nil {
				t.Fatalf("%s: no calls", s.command)
			}
			most = max(most, *per)
		}
		if most < 0.5 || most > 1.5 {
			t.Errorf("%s: packets a call: %v", s.command, most)
		}
	}
}

// TestLostPacketsEndTheRound: a round never hangs on a packet that does not come.
func TestLostPacketsEndTheRound(t *testing.T) {
	for _, c := range []command{{count: 3}, {count: 4}, {count: 1}} {
		if err := c.verify(c.count * (c.count - 1) / 2); err != nil {
			t.Error(err)
		}
		if c.verify(1000) == nil {
			t.Errorf("%d packets: any sum passes", c.count)
		}
	}
	l := lost{since: time.Now().Add(-2 * packetWait)}
	if l.wait() == nil {
		t.Error("patience never ends")
	}
}

// The rivals send the same frames.
func TestHeaderRepeatsPacket(t *testing.T) {
	text := shmtest.Got(testdata.Rivals.ReadFile("rivals/packets.h")).Or(t)
	for name, want := range map[string]int{"NETNS_FD": netnsFD, "FRAME_BYTES": frameBytes,
		"PAYLOAD_OFF": payloadOff, "SEQUENCE_OFF": sequenceOff, "DRAIN_BLOCK": drainBlock,
		"MAX_BATCH": maxBatch, "PORT_BASE": int(endAddrs[0].Port())} {
		m := regexp.MustCompile(`(?m)^#define ` + name + ` (\d+)\b`).FindSubmatch(text)
		if m == nil || string(m[1]) != fmt.Sprint(want) {
			t.Errorf("%s: packets.h has %q, the loops %d", name, m, want)
		}
	}
	for i, name := range endNames {
		if !strings.Contains(string(text), `"`+name+`"`) ||
			!strings.Contains(string(text), `"`+endAddrs[i].Addr().String()+`"`) {
			t.Errorf("packets.h does not know %s, %v", name, endAddrs[i])
		}
	}
}
