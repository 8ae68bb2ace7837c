package command

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/shmring/shmring/cmd/shmctl/internal/bench"
)

// benchNames are those of the benches, in the order in which they run.
func benchNames() (names []string) {
	for _, b := range bench.Benches {
		names = append(names, b.Name)
	}
	return names
}

const benchLong = `Measure the library against the same thing in C, on this machine.

ring: throughput, and one-way latency with both sides looking all the time, against a ring of the
same layout, and against DPDK's rte_ring if libdpdk-dev is installed. wake: round trip of two
processes that sleep for every message, against the raw primitive. cq: calls of completion queues,
event queues and counters, against the same call of libfabric's shm provider if libfabric-dev is
installed; the way from post to read between two processes, also against a ring in C and a bare
cache line, and against what a Go program would use instead: a channel in one process, a unix
socket, pipes; and what options cost, against ourselves. fabric: messages between endpoints, of 8
bytes, and of 4 KiB and 1 MiB with completions, against libfabric's; the same megabyte out of a
pool, copied once, or lent and looked at in place; and net.Conn over them against that of a unix
socket. scale: what many writers of a queue, or many queues of a wait set, cost over one; BATCH is
how many. tail: single messages timed one by one, one way, with and without a heap that is busy,
over a ring in C; --json and --report have the distribution. xdp: packets over pairs of veth
interfaces in namespaces that it makes, which needs root; AF_XDP sockets against a C program on the
bare kernel interface, sendmmsg, AF_PACKET and net.UDPConn. Without a name, all.

drop sends to a peer that drops, drain is the time of reading a packet that is queued, by a process
whose memory the other side's round has driven out of the caches, drain-steady the same once it has
read a block, echo counts packets that came back, trip is a round trip of two processes that look
all the time, trip-block of two that sleep. endpoint- rows have a whole endpoint, whose sends
complete in a queue and whose payloads have checksums, against the same C program, which has
neither; device- rows have a device process in the middle, against the endpoint linked in; reflect
is a round trip to a program at the other end. Programs run in native mode, or generic. Packets
received a second are not measured: on veth the sender's path through the kernel is the bound, so
they rank nobody. CPU/PKT is nanoseconds of processor time for a packet, ours and the rival's,
PKT/CALL packets for a system call, counted by the kernel.

Both sides run in turn, in many short rounds, on the same two processors. RATIO is the median of
ours divided by the rival's of the same moment, INTERVAL holds it with 95% confidence: for Mops/s
more is better, for ns less. OURS and RIVAL depend on where the processors of this machine sit;
they are context only. "As fast" means that the interval stays within 5% of 1. With --before the
rival is another build of shmctl, in all rows that it has: "as fast" is then within 3%, and the exit
code is 1 if a row is slower. .ci/bench builds and measures a former commit so.`

func newBench() *cobra.Command {
	var (
		o    output
		opt  bench.Options
		cpus []int

		quick bool
		page  string
	)
	cmd := &cobra.Command{
		Use:   "bench [" + strings.Join(benchNames(), "] [") + "]",
		Short: "Measure the library against the same thing in C, libfabric and sockets",
		Long:  benchLong,
		Example: `  shmctl bench ring
  shmctl bench wake --quick               rough
  shmctl bench -j > bench.json            progress still shows on the terminal
  shmctl bench cq --case 'read*'          some of it
  shmctl bench ring --cpus 2,3 --cc clang
  shmctl bench --report bench.html        tables and plots in one page
  shmctl bench cq --before ./shmctl.old   what a change has cost`,
		ValidArgs: benchNames(),
		Args: func(_ *cobra.Command, args []string) error {
			return known("measurement", args, benchNames())
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(cpus) == 2 {
				opt.CPUs = [2]int(cpus)
			} else if len(cpus) != 0 {
				return wrong("--cpus takes two processors, not %d", len(cpus))
			}
			if _, err := path.Match(opt.Cases, ""); err != nil {
				return wrong("--case %q: %w", opt.Cases, err)
			}
			if opt.Pairs < 0 || opt.RoundTime < 0 {
				return wrong("--pairs and --round must not be negative")
			}
			if err := someCase(args, opt); err != nil {
				return err
			}
			if quick {
				opt.Pairs, opt.Batches = cmp.Or(opt.Pairs, quickPairs), []int{1, 32}
			}
			return runBenches(cmd, args, &o, opt, page)
		},
	}
	o.flags(cmd)
	f := cmd.Flags()
	f.BoolVarP(&o.noHeader, "no-header", "H", false, "leave the heading out")
	f.BoolVar(&quick, "quick", false, "few rounds of few batch sizes: rough")
	f.StringVar(&page, "report", "", "also write a page with plots to this `file`")
	f.IntVar(&opt.Pairs, "pairs", 0, "pairs of rounds a row, 0 is 101, for xdp 31 (`n`)")
	f.DurationVar(&opt.RoundTime, "round", 0, "length of a round, 0 is 20ms, for xdp 5ms (`time`)")
	f.IntSliceVar(&cpus, "cpus", nil, "the two processors (`a,b`), the first two allowed if not given")
	f.StringVar(&opt.Compiler, "cc", "", "C `compiler` for the rivals, or none")
	f.StringVar(&opt.Cases, "case", "", "only the cases that match (`glob`)")
	f.StringVar(&opt.Before, "before", "", "another build of `shmctl`, in place of the rivals")
	return cmd
}

// someCase refuses a pattern that matches no case of these benches.
func someCase(benches []string, opt bench.Options) error {
	if opt.Cases == "" {
		return nil
	}
	var all []string
	for _, b := range bench.Benches {
		if len(benches) > 0 && !slices.Contains(benches, b.Name) {
			continue
		}
		if len(b.Cases(opt)) > 0 {
			return nil
		}
		all = append(all, b.Cases(bench.Options{})...)
	}
	return wrong("--case %q matches none of %s", opt.Cases, strings.Join(all, ", "))
}

// quickPairs are enough for an interval, and no more.
const quickPairs = 11

func runBenches(cmd *cobra.Command, args []string, o *output, opt bench.Options,
	file string,
) error {
	p := progressOf(cmd)
	results := map[string][]bench.Row{}
	t := benchTable()
	packets, slower := false, 0
	var failed error // rows that were measured before it are shown
	for _, b := range bench.Benches {
		if len(args) > 0 && !slices.Contains(args, b.Name) {
			continue
		}
		opt.Progress = p.show(b.Name)
		rows, err := b.Run(cmd.Context(), opt)
		p.clear()
		if len(args) == 0 && errors.Is(err, bench.ErrNoWire) {
			fmt.Fprintf(cmd.ErrOrStderr(), "shmctl: %s left out: %v\n", b.Name, err)
			continue
		}
		results[b.Name] = rows
		for i := range rows {
			t.add(benchRow(b.Name, &rows[i])...)
			packets = packets || rows[i].Packets != nil
			if verdict(&rows[i]) == slowerThan+bench.Former {
				slower++
			}
		}
		if err != nil {
			if cmd.Context().Err() != nil {
				err = errInterrupted
			}
			failed = opFailed(b.Name, err)
			break
		}
	}
	if failed != nil && len(t.rows) == 0 {
		return failed
	}
	if !packets {
		t.drop("CPU/PKT", "PKT/CALL")
	}
	if file != "" {
		if err := writeReport(file, results); err != nil {
			return opFailed(file, err)
		}
	}
	tails := tailTable(results["tail"])
	err := o.print(cmd.OutOrStdout(), "bench", results, func(p page) []string {
		lines := t.lines(!o.noHeader, p, "")
		if len(tails.rows) > 0 {
			lines = append(append(lines, ""), tails.lines(!o.noHeader, p, "")...)
		}
		return lines
	})
	switch {
	case err != nil || failed != nil:
		return cmp.Or(err, failed)
	case slower > 0:
		return opFailed("", fmt.Errorf("%d rows are slower than before", slower))
	}
	return nil
}

var errInterrupted = errors.New("interrupted: what follows was not measured")

// benchTable has a cell for each that [benchRow] returns.
func benchTable() *table {
	return &table{columns: []column{left("BENCH", 0), left("CASE", 0), right("BATCH", 0),
		right("OURS", 2), right("RIVAL", 2), left("UNIT", 2), right("RATIO", 0),
		left("INTERVAL", 4), right("ROUNDS", 1), left("CPU/PKT", 5), left("PKT/CALL", 6),
		left("AGAINST", 3), left("VERDICT", 0)}}
}

func benchRow(name string, r *bench.Row) []string {
	digits := func(n int) func(*float64) string {
		return func(x *float64) string {
			return orDash(x, func(x float64) string { return strconv.FormatFloat(x, 'f', n, 64) })
		}
	}
	figure, ratio := digits(1), digits(3)
	ours := figure
	if r.Packets != nil && r.Unit != "ns" { // around one million a second
		ours = digits(3)
	}
	interval := "-"
	if r.RatioLow != nil && r.RatioHigh != nil {
		interval = ratio(r.RatioLow) + " to " + ratio(r.RatioHigh)
	}
	cpu, calls := "-", "-"
	if p := r.Packets; p != nil {
		cpu = figure(p.OursCPU) + "/" + figure(p.RivalCPU)
		calls = figure(p.OursPerCall) + "/" + figure(p.RivalPerCall)
	}
	return []string{name, r.Case, strconv.Itoa(r.Batch), ours(r.Ours), ours(r.Rival), r.Unit,
		ratio(r.Ratio), interval, strconv.Itoa(r.Rounds), cpu, calls, r.RivalName, verdict(r)}
}

// Within these margins two things are equally fast: ours and a rival, and two builds of ours.
const (
	rivalMargin  = 0.05
	formerMargin = 0.03
)

// slowerThan begins the verdict on a row that is.
const slowerThan = "slower than "

// verdict says what the interval proves, and no more.
func verdict(r *bench.Row) string {
	margin := rivalMargin
	if r.RivalName == bench.Former {
		margin = formerMargin
	}
	if r.RatioLow == nil || r.RatioHigh == nil {
		if r.Note != "" {
			return r.Note
		}
		return "not measured"
	}
	worst, best := *r.RatioLow, *r.RatioHigh
	if r.Unit == "ns" { // less is better: turn it round
		worst, best = 1 / *r.RatioHigh, 1 / *r.RatioLow
	}
	switch {
	case worst > 1+margin:
		return fmt.Sprintf("faster than %s", r.RivalName)
	case worst >= 1-margin:
		return fmt.Sprintf("as fast as %s", r.RivalName)
	case best < 1-margin:
		return slowerThan + r.RivalName
	}
	return "not decided: measure longer"
}

// progress writes over one line of a terminal, and nothing elsewhere.
type progress struct {
	w    io.Writer
	term terminal
	last time.Time
	name string // of the phase that was shown last
}

func progressOf(cmd *cobra.Command) *progress {
	return &progress{w: cmd.ErrOrStderr(), term: terminalOf(cmd.ErrOrStderr())}
}

func (p *progress) show(name string) func(bench.Progress) {
	return func(b bench.Progress) {
		p.line("%s: row %d of %d, %s, batch %d: %d of %d rounds", name, b.Row+1, b.Rows, b.Case,
			b.Batch, b.Pair, b.Pairs)
	}
}

// phase begins one, unless it has begun: its first line is shown however soon it comes.
func (p *progress) phase(name string) *progress {
	if name != p.name {
		p.name, p.last = name, time.Time{}
	}
	return p
}

// line shows a line in place of the last one, unless that came just now.
func (p *progress) line(format string, args ...any) {
	const every = 100 * time.Millisecond
	if now := time.Now(); p.term.on && now.Sub(p.last) >= every {
		p.last = now
		line := cut(fmt.Sprintf(format, args...), p.term.columns-1)
		fmt.Fprintf(p.w, "\r%s%s", line, escToLineEnd)
	}
}

func (p *progress) clear() {
	if p.term.on {
		fmt.Fprintf(p.w, "\r%s", escToLineEnd)
	}
}
