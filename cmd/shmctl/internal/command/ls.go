package command

import (
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/shmring/shmring/ctl"
)

func newList() *cobra.Command {
	l := &look{op: "ls", render: listAll}
	cmd := &cobra.Command{
		Use:     "ls [NAME|GLOB]...",
		Aliases: []string{"list"},
		Short:   "List queues, one a line, and what stands beside them",
		Long: `List completion queues and event queues, one a line, then counters, address vectors and the
bells of processes that wait for several queues: all of the directory, or those that are named.

FORMAT is events for an event queue. SLOTS is what each lane holds, LANES how many writers are
attached of how many can be. DEPTH counts entries that take up room, FULL% how full the fullest lane
is, HIGH the most entries that ever waited in one. POSTED and READ count entries, WAKES the system
calls with which writers woke the reader, SUPPR the publishes that needed none. With -w, IN-AGO and
OUT-AGO say how long ago something was seen to be posted and read, > if not since the first look.

STATE is one word, here, in show and in JSON, the first that applies of: version (made by another
version of the library), denied (of another user), corrupt (damaged, or a lane is), error, closed
(destroyed), overrun (entries were lost), dead (its owner died), lock-kept (it did, and a child that
it forked keeps the lock), lock-lost (it lives without the lock), released (left to a successor),
stopped (by a signal or debugger), full (a lane is), open. Below the table is what there is to say.

Numbers of a queue in use are each true at some moment, not all at the same one.`,
		Example: `  shmctl ls                     all queues of this user
  shmctl ls 'order*' -w         those that match, once a second
  shmctl ls -w 200ms -H         five times a second, without heading
  shmctl ls -j | jq '.queues[] | select(.depth > 0) | .name'`,
		RunE: l.run,
	}
	l.flags(cmd)
	return cmd
}

// listAll is the table of queues, and one of the other objects if there are any.
func listAll(all found, o *output, p page) []string {
	var out []string
	if len(all.queues) > 0 || len(all.objects) == 0 {
		out = listLines(all.queues, o, p)
	}
	if len(all.objects) == 0 {
		return out
	}
	if len(out) > 0 {
		out = append(out, "")
	}
	return append(out, objectLines(all.objects, o, p)...)
}

// listLines is the table of queues. Rates stand beside totals once there are any.
func listLines(queues []ctl.Queue, o *output, p page) []string {
	rates := false
	for i := range queues {
		rates = rates || queues[i].PerSecond != nil
	}
	t := &table{columns: []column{left("NAME", 0), left("FORMAT", 2), right("SLOTS", 5),
		right("LANES", 7), right("DEPTH", 0), right("FULL%", 0), right("HIGH", 3),
		right("POSTED", 6), right("READ", 6), right("WAKES", 4), right("SUPPR", 1)}}
	if rates {
		t.columns = append(t.columns, right("IN/s", 0), right("OUT/s", 0), right("WAKES/s", 8),
			right("IN-AGO", 7), right("OUT-AGO", 7))
	}
	t.columns = append(t.columns, right("SIZE", 3), left("READER", 9), left("STATE", 0))
	for i := range queues {
		t.add(listRow(&queues[i], rates, o)...)
		notesOf(t, &queues[i])
	}
	return t.lines(!o.noHeader, p, "")
}

// notesOf says below a table what does not fit a cell.
func notesOf(t *table, q *ctl.Queue) {
	t.note(q.Name, q.Error)
	for i := range q.Lanes {
		t.note(fmt.Sprintf("%s, lane %d", q.Name, q.Lanes[i].Row), q.Lanes[i].Error)
	}
}

func listRow(q *ctl.Queue, rates bool, o *output) []string {
	num := func(n *uint64) string { return orDash(n, o.number) }
	format := orDash(q.Format, printable)
	if q.Kind != nil && *q.Kind != "queue" {
		format = *q.Kind
	}
	row := []string{printable(q.Name), format, num(q.Capacity), lanesOf(q),
		num(q.Depth), fullest(q), num(q.HighWater), num(q.Posted), num(q.Read), num(q.Wakes),
		num(q.WakesSuppressed)}
	if rates {
		if r := q.PerSecond; r != nil {
			row = append(row, o.rate(r.Posted), o.rate(r.Read), o.rate(r.Wakes))
		} else {
			row = append(row, "-", "-", "-")
		}
		row = append(row, o.since(q.SincePosted), o.since(q.SinceRead))
	}
	return append(row, orDash(q.SizeBytes, o.bytes), processWords(q.Reader),
		orDash(q.State, printable))
}

// since prints how long nothing came.
func (o *output) since(s *ctl.Since) string {
	if s == nil {
		return "-"
	}
	text := duration(s.Ns)
	if o.raw {
		text = strconv.FormatInt(s.Ns, 10)
	}
	if s.More {
		return ">" + text
	}
	return text
}

func orDash[T any](v *T, f func(T) string) string {
	if v == nil {
		return "-"
	}
	return f(*v)
}

func lanesOf(q *ctl.Queue) string {
	if q.MaxLanes == nil {
		return "-"
	}
	writers := 0
	for i := range q.Lanes {
		if l := &q.Lanes[i]; !l.Own && l.Life != nil && *l.Life == "alive" {
			writers++
		}
	}
	return fmt.Sprintf("%d/%d", writers, *q.MaxLanes)
}

// fullest returns how full the fullest lane is: a lane that is full stops its writer, whatever
// room the others have.
func fullest(q *ctl.Queue) string {
	if q.Capacity == nil {
		return "-"
	}
	var most uint64
	for i := range q.Lanes {
		if d := q.Lanes[i].Depth; d != nil {
			most = max(most, *d)
		}
	}
	return strconv.FormatFloat(100*float64(most)/float64(*q.Capacity), 'f', 1, 64)
}

// processWords names a process: its number, its command if known, and what is wrong with it.
func processWords(p *ctl.Process) string {
	if p == nil || p.PID == nil {
		return "-"
	}
	words := strconv.Itoa(*p.PID)
	if p.Command != nil {
		words += " " + *p.Command
	}
	switch {
	case p.Life != nil && *p.Life != "alive":
		words += " (" + *p.Life + ")"
	case p.Stopped != nil && *p.Stopped:
		words += " (stopped)"
	}
	return words
}
