package command

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/shmring/shmring/ctl"
	"github.com/shmring/shmring/internal/capture"
	xstatus "github.com/shmring/shmring/internal/status"
	"github.com/shmring/shmring/shm"
)

const checkLong = `Verify every invariant of queues, event queues, counters, address vectors and
bells: header, sections, owners, indices, the entries between them, the index of a vector. Without
names everything in the directory is checked. A name with a slash is a path, to an object, to the
directory of a queue or to one of many, which may belong to another user: reading is all it takes.

--pid checks what a process has open or mapped, also what has no name: queues, lanes, counters and
vectors that are passed by descriptor, and the frames, status pages and submissions of a device
process. That takes the user of the process, or root. NAME is then PID/FD, and the name in the
header. A lane is compared with its queue's words if the process reads that queue.

Of frames the numbers are checked: those in each state add up to all that an endpoint has, and no
more are out than a device process gave to an application. Which frame is in which state is not in
shared memory but with the process that owns the socket, where no peer can change it.

Objects may be in use: nothing is changed, nobody waits or notices, and what looks broken is looked
at again and counts if it is broken every time. --list says what is checked, and which of it is
exact at every moment; the rest is checked when the object stands still for the time of a look.

OFFSET is that of the word in bytes from the start of the file, and +IN from that of its section.

Exit codes: 0 all is whole, 5 something is not.`

func newCheck() *cobra.Command {
	var (
		o    output
		one  target
		all  bool
		list bool
		pids []int
	)
	cmd := &cobra.Command{
		Use:   "check [NAME|PATH]... | --pid PID",
		Short: "Verify every invariant of objects, also while they are used",
		Long:  checkLong,
		Example: `  shmctl check                  everything of this user
  shmctl check orders           one queue
  shmctl check /dev/shm/shmring-1000
  shmctl check --pid $(pidof server)
  shmctl check -j | jq -r '.check.findings[] | "\(.path) \(.offset) \(.invariant)"'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkArguments(all, pids, args); err != nil {
				return &usageError{err}
			}
			if list {
				all := invariants()
				return o.print(cmd.OutOrStdout(), "invariants", all, func(p page) []string {
					return invariantLines(all, &o, p)
				})
			}
			if len(pids) > 0 {
				return verifyProcesses(cmd, &o, pids)
			}
			return verify(cmd, &o, &one, args)
		},
	}
	o.tableFlags(cmd)
	one.flags(cmd)
	cmd.ValidArgsFunction = one.names(math.MaxInt, true, cobra.ShellCompDirectiveDefault)
	cmd.Flags().BoolVarP(&all, "all", "a", false, "everything in the directory, as without names")
	cmd.Flags().IntSliceVar(&pids, "pid", nil,
		"check what the process `pid` has open or mapped; may be repeated")
	cmd.Flags().BoolVar(&list, "list", false, "list the invariants and check nothing")
	return cmd
}

func checkArguments(all bool, pids []int, args []string) error {
	switch {
	case all && len(args) > 0:
		return errors.New("--all and names exclude each other")
	case len(pids) > 0 && (all || len(args) > 0):
		return errors.New("--pid excludes names and --all")
	}
	for _, pid := range pids {
		if pid < 1 {
			return fmt.Errorf("--pid must be above 0, not %d", pid)
		}
	}
	return nil
}

func verify(cmd *cobra.Command, o *output, one *target, args []string) error {
	dir := pathOf(one.dir)
	paths := []string{dir}
	if len(args) > 0 {
		paths = nil
	}
	for _, a := range args {
		if !strings.Contains(a, "/") {
			a = filepath.Join(dir, a)
		}
		paths = append(paths, a)
	}
	r, failed := ctl.Check(ctl.CheckOptions{More: checkMore}, paths...)
	return report(cmd, o, r, failed)
}

func verifyProcesses(cmd *cobra.Command, o *output, pids []int) error {
	all := ctl.CheckReport{Undecided: []string{}, Findings: []ctl.Finding{}}
	var errs []error
	for _, pid := range pids {
		r, err := ctl.CheckProcess(ctl.CheckOptions{More: checkMore}, pid)
		all.Objects += r.Objects
		all.Undecided = append(all.Undecided, r.Undecided...)
		all.Findings = append(all.Findings, r.Findings...)
		if err != nil {
			errs = append(errs, err)
		}
	}
	return report(cmd, o, all, errs...)
}

// report prints what was found. Each failure is told by itself: what was not checked must not look
// as if it were whole.
func report(cmd *cobra.Command, o *output, r ctl.CheckReport, failures ...error) error {
	if err := o.print(cmd.OutOrStdout(), "check", r, func(p page) []string {
		return checkLines(&r, o, p)
	}); err != nil {
		return err
	}
	var errs []error
	if n := len(r.Findings); n > 0 {
		errs = append(errs, &opError{problem: &ctl.Problem{Code: ctl.CodeCheck,
			Message: fmt.Sprintf("%d invariants do not hold", n)}})
	}
	for _, f := range failures {
		if f != nil {
			errs = append(errs, opFailed("", f))
		}
	}
	return errors.Join(errs...)
}

func checkLines(r *ctl.CheckReport, o *output, p page) []string {
	var out []string
	if len(r.Findings) > 0 {
		t := &table{columns: []column{left("NAME", 0), left("FILE", 4), left("INVARIANT", 0),
			left("SECTION", 3), right("OFFSET", 0), right("+IN", 2), left("FOUND", 0)}}
		for i := range r.Findings {
			f := &r.Findings[i]
			hex := func(n uint64) string { return fmt.Sprintf("%#x", n) }
			t.add(printable(f.Name), printable(filepath.Base(f.Path)), f.Invariant, f.Section,
				orDash(f.Offset, hex), orDash(f.SectionOffset, hex), f.Got+", want "+f.Want)
		}
		out = append(t.lines(!o.noHeader, p, ""), "")
	}
	if o.noHeader {
		return out
	}
	for _, path := range r.Undecided {
		out = append(out, printable(path)+" changed all the time: only what is exact was checked")
	}
	return append(out, fmt.Sprintf("%d objects checked, %d findings", r.Objects, len(r.Findings)))
}

// invariant is what check --list prints of each.
type invariant struct {
	Name  string `json:"name"`
	Exact bool   `json:"exact"` // at every moment, not of a quiet object only
	What  string `json:"what"`
}

// invariants are all, also those of the device path.
func invariants() (all []invariant) {
	for _, i := range slices.Concat(ctl.Invariants(), xstatus.Invariants(), capture.Invariants()) {
		all = append(all, invariant(i))
	}
	return all
}

func invariantLines(all []invariant, o *output, p page) []string {
	t := &table{columns: []column{left("INVARIANT", 0), left("WHEN", 0), left("WHAT", 0)}}
	for _, i := range all {
		when := "always"
		if !i.Exact {
			when = "quiet"
		}
		t.add(i.Name, when, i.What)
	}
	return t.lines(!o.noHeader, p, "")
}

// checkMore checks objects of the device path, of which package ctl knows nothing.
func checkMore(obj *shm.Object) []shm.Violation {
	switch obj.Header().Kind {
	case shm.KindEndpoint:
		return xstatus.Check(obj)
	case shm.KindCapture:
		return capture.Check(obj)
	}
	return nil
}
