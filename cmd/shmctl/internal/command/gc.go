package command

import (
	"fmt"
	"math"

	"github.com/spf13/cobra"

	"github.com/shmring/shmring/ctl"
)

const gcLong = `Say what stands in the directory and what may go, and with --remove remove that.

Only what is provably dead goes: nobody reads it, nobody writes it, and nobody is to come. The proof
is the lock that the kernel takes from a process when it dies, in whatever PID namespace; nothing is
removed because time has passed, and a process that is stopped is not dead. A queue that is not
persistent goes with what is unread in it, and it says how much that is. A socket goes when no
process has it open, nor the lock of its name. What is persistent, or was left by its owner for a
successor, stays; --persistent-too NAME removes it all the same, unless somebody uses it or entries
in it are unread. Foreign files, objects of other versions, damaged ones and those of other users
are listed and never touched.

FATE is garbage, removed, living, left, persistent, unread, lock lost, foreign, version, other user,
damaged or failed. Any number of processes may collect at once, while others create and attach.

Exit codes: 0 when nothing is left that should go, and after a mere look; 1 when something could not
be looked at or removed, or was named with --persistent-too and stays.`

// gcResult is what gc prints.
type gcResult struct {
	Remove  bool          `json:"remove"` // false: nothing was touched
	Garbage int           `json:"garbage"`
	Removed int           `json:"removed"`
	Failed  int           `json:"failed"`
	Bytes   uint64        `json:"bytes"`  // of what was removed, or would be
	Unread  uint64        `json:"unread"` // entries in it that nobody read
	Remains []ctl.Remains `json:"remains"`
}

func newGC() *cobra.Command {
	var (
		o   output
		opt ctl.CollectOptions
		one target
	)
	cmd := &cobra.Command{
		Use:   "gc",
		Short: "Remove what dead processes left, after saying what that is",
		Long:  gcLong,
		Example: `  shmctl gc                     what is there, and what would go
  shmctl gc --remove            remove that
  shmctl gc -r --persistent-too orders and a persistent queue with nothing unread
  shmctl gc -j | jq -r '.gc.remains[] | select(.fate == "garbage") | .name'`,
		Args: takesNone,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return collect(cmd, &o, &one, opt)
		},
	}
	o.tableFlags(cmd)
	one.flags(cmd)
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	f := cmd.Flags()
	f.BoolVarP(&opt.Remove, "remove", "r", false, "remove what is garbage")
	f.StringArrayVar(&opt.Waiting, "persistent-too", nil,
		"remove `name` too, which waits for a successor; may be repeated")
	_ = cmd.RegisterFlagCompletionFunc("persistent-too",
		one.names(math.MaxInt, true, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func collect(cmd *cobra.Command, o *output, one *target, opt ctl.CollectOptions) error {
	d, err := one.open("")
	if err != nil {
		return err
	}
	defer d.Close()
	all, err := ctl.Collect(d, opt)
	if err != nil {
		return opFailed("", err)
	}
	r := sumUp(opt.Remove, all)
	if err := o.print(cmd.OutOrStdout(), "gc", r, func(p page) []string {
		return gcLines(&r, o, p)
	}); err != nil {
		return err
	}
	return gcFailed(&r, opt.Waiting)
}

func sumUp(remove bool, all []ctl.Remains) gcResult {
	r := gcResult{Remove: remove, Remains: all}
	for i := range all {
		b := &all[i]
		gone := b.Fate == ctl.FateRemoved
		switch {
		case gone:
			r.Removed++
		case b.Fate == ctl.FateGarbage:
			r.Garbage++
		case b.Fate == ctl.FateFailed:
			r.Failed++
		}
		if gone || b.Fate == ctl.FateGarbage {
			addTo(&r.Bytes, b.SizeBytes)
			addTo(&r.Unread, b.Unread)
		}
	}
	return r
}

func addTo(sum, known *uint64) {
	if known != nil {
		*sum += *known
	}
}

// gcFailed is what keeps the exit code from being 0.
func gcFailed(r *gcResult, waiting []string) error {
	if r.Failed > 0 {
		return opFailed("", fmt.Errorf("%d could not be removed: their lines say why",
			r.Failed))
	}
	for _, name := range waiting {
		found := false
		for i := range r.Remains {
			b := &r.Remains[i]
			if b.Name != name {
				continue
			}
			found = true
			if b.Fate != ctl.FateRemoved && b.Fate != ctl.FateGarbage {
				return opFailed(name, fmt.Errorf("stays: %s", b.Reason))
			}
		}
		if !found {
			return &opError{name: name, problem: &ctl.Problem{Code: ctl.CodeNotFound,
				Message: "nothing of that name", Hint: new("shmctl gc lists what there is")}}
		}
	}
	return nil
}

func gcLines(r *gcResult, o *output, p page) []string {
	t := &table{columns: []column{left("NAME", 0), left("KIND", 1), right("SIZE", 2),
		right("UNREAD", 3), left("FATE", 0), left("WHY", 4)}}
	for i := range r.Remains {
		b := &r.Remains[i]
		t.add(printable(b.Name), orDash(b.Kind, printable), orDash(b.SizeBytes, o.bytes),
			orDash(b.Unread, o.number), b.Fate, b.Reason)
		t.note(b.Name, b.Error)
	}
	out := t.lines(!o.noHeader, p, "")
	if o.noHeader {
		return out
	}
	size := o.bytes(r.Bytes)
	if o.raw || r.Bytes < 1024 { // it has no unit
		size += " bytes"
	}
	unread := ""
	if r.Unread > 0 {
		unread = ", with " + o.number(r.Unread) + " unread"
	}
	switch {
	case r.Remove:
		out = append(out, "", fmt.Sprintf("%d of %d removed, %s%s", r.Removed, len(r.Remains),
			size, unread))
	case r.Garbage > 0:
		out = append(out, "", fmt.Sprintf("%d of %d would be removed, %s%s: shmctl gc --remove",
			r.Garbage, len(r.Remains), size, unread))
	default:
		out = append(out, "", fmt.Sprintf("nothing of %d would be removed", len(r.Remains)))
	}
	return out
}
