package command

import (
	"cmp"
	"fmt"
	"iter"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/shmring/shmring/ctl"
	"github.com/shmring/shmring/shm"
)

func newShow() *cobra.Command {
	l := &look{render: showAll, needs: true}
	cmd := &cobra.Command{
		Use:   "show NAME|GLOB...",
		Short: "Show all that is known of queues and their lanes, or of other objects",
		Long: `Show all that is known of queues and their lanes, or of other objects: a key and a value a
line, with the keys of the JSON form (with -n in full), then a table of lanes. What is not known
is "-".

Head is the first entry that the reader did not give back, peeked the first that its application has
not got, tail the next that will be posted. Lane 0 belongs to the reader's own process.

Of an endpoint the table has who sends to it, of an outbox whom its endpoint sends to: SENT and
EXAMINED count messages, DEPTH those that were not examined; GRANTED are bytes that may be sent in
all, CONTROL what the receiver has asked for and its sender not taken.`,
		Example: `  shmctl show orders            everything, once
  shmctl show orders -w         again every second, with rates
  shmctl show 'order*' -n       numbers in full
  shmctl show orders -j | jq '.queues[0].lanes[] | {row, pid, command, depth}'`,
		Args: takesSome("NAME"),
		RunE: l.run,
	}
	l.flags(cmd)
	return cmd
}

// showAll is queues, then other objects.
func showAll(all found, o *output, p page) (out []string) {
	add := func(lines []string) {
		if len(out) > 0 {
			out = append(out, "")
		}
		out = append(out, lines...)
	}
	for i := range all.queues {
		q := &all.queues[i]
		lines := showFields(q, q.Name, q.Path, orDash(q.State, printable), q.Error, o, p)
		if q.Error == nil {
			lines = append(append(lines, "  lanes:"), laneLines(q.Lanes, o, p)...)
		}
		add(lines)
	}
	for i := range all.objects {
		b := &all.objects[i]
		lines := showFields(b, b.Name, b.Path, b.State, b.Error, o, p)
		switch {
		case b.Fabric != nil:
			lines = append(append(lines, "  lanes:"), fabricLines(b.Fabric.Lanes, "FROM", o, p)...)
		case b.Outbox != nil:
			lines = append(append(lines, "  lanes:"), fabricLines(b.Outbox.Lanes, "TO", o, p)...)
		}
		add(lines)
	}
	return out
}

// fieldLine prints one field of a queue or object. Numbers have their units with them, unless raw.
func fieldLine(key, value string, o *output) string {
	if !o.raw {
		key = strings.TrimSuffix(strings.TrimSuffix(key, "_bytes"), "_ns")
	}
	return fmt.Sprintf("  %-17s %s", key+":", value)
}

// showFields prints the fields of a queue or object in the order of the struct, so that none is
// forgotten, or what is known of one that cannot be looked at.
func showFields(of any, name, path, state string, e *ctl.Problem, o *output, p page) []string {
	out := []string{p.bold(printable(name))}
	add := func(key, value string) { out = append(out, fieldLine(key, value, o)) }
	if e != nil {
		add("path", printable(path))
		add("state", p.state(state))
		add("error", e.Message)
		if e.Hint != nil {
			add("remedy", *e.Hint)
		}
		return out
	}
	for key, v := range fields(of) {
		switch f := v.Interface().(type) {
		case *ctl.Process:
			add(key, processLine(f))
		case *ctl.Bell:
			add(key, bellLine(f))
		case *ctl.Rates:
			if f != nil {
				add(key, ratesLine(f, o))
			}
		case *ctl.Since:
			add(key, o.since(f))
		case *ctl.Counter, *ctl.Addresses, *ctl.Domain, *ctl.Fabric, *ctl.Outbox, *ctl.Group:
			if !v.IsNil() {
				addFields(add, f, o)
			}
		default:
			switch key {
			case "name", "error", "lanes": // printed before and after
			case "state":
				add(key, p.state(state))
			default:
				add(key, valueText(key, v, o))
			}
		}
	}
	return out
}

// fields goes round the fields of a struct with their keys, embedded ones in their place.
func fields(of any) iter.Seq2[string, reflect.Value] {
	return func(yield func(string, reflect.Value) bool) {
		v := reflect.ValueOf(of).Elem()
		for _, f := range reflect.VisibleFields(v.Type()) {
			if !f.Anonymous && !yield(jsonKey(f), v.FieldByIndex(f.Index)) {
				return
			}
		}
	}
}

func jsonKey(f reflect.StructField) string {
	key, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return key
}

// valueText prints a scalar, or a pointer to one.
func valueText(key string, v reflect.Value, o *output) string {
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return "-"
		}
		v = v.Elem()
	}
	switch x := v.Interface().(type) {
	case uint64:
		if strings.HasSuffix(key, "_bytes") {
			return o.bytes(x)
		}
		return o.number(x)
	case int64: // the only ones are times
		if o.raw {
			return strconv.FormatInt(x, 10)
		}
		return duration(x)
	case time.Time:
		return x.Format(time.RFC3339)
	case string:
		return printable(x)
	}
	return fmt.Sprint(v.Interface())
}

// duration keeps three digits or so of a time.
func duration(ns int64) string {
	d := time.Duration(ns)
	switch {
	case d >= time.Minute:
		return d.Round(time.Second).String()
	case d >= time.Second:
		return d.Round(10 * time.Millisecond).String()
	}
	return d.Round(10 * time.Microsecond).String()
}

func processLine(p *ctl.Process) string {
	if p == nil || p.PID == nil {
		return "-"
	}
	words := []string{"pid " + strconv.Itoa(*p.PID)}
	if p.Command != nil {
		words = append(words, "command "+*p.Command)
	}
	if p.Life != nil {
		words = append(words, *p.Life)
	}
	if p.Stopped != nil && *p.Stopped {
		words = append(words, "stopped")
	}
	return strings.Join(words, ", ")
}

func bellLine(b *ctl.Bell) string {
	if b == nil {
		return "-"
	}
	words := "not armed"
	if b.Armed {
		words = "armed"
	}
	for _, w := range []struct {
		on   bool
		text string
	}{{b.Direct, "read sleeps"}, {b.FD, "descriptor"}, {b.Member, "in a set"},
		{b.Channel == "solicited", "channel waits for solicited"},
		{b.Channel == "any", "channel waits for any"}, {b.SignalPending, "signal pending"}} {
		if w.on {
			words += ", " + w.text
		}
	}
	words = fmt.Sprintf("%s, seq %d, rung %d, epoch %d, ready lanes %d", words, b.Seq, b.Rung,
		b.Epoch, b.ReadyLanes)
	if b.Domain != nil && b.DomainBit != nil {
		words += fmt.Sprintf(", bit %d of bell-%s", *b.DomainBit, *b.Domain)
	}
	return words
}

func ratesLine(r *ctl.Rates, o *output) string {
	return fmt.Sprintf("posted %s, read %s, wakes %s, suppressed %s", o.rate(r.Posted),
		o.rate(r.Read), o.rate(r.Wakes), o.rate(r.WakesSuppressed))
}

func laneLines(lanes []ctl.Lane, o *output, p page) []string {
	t := &table{columns: []column{right("ROW", 0), right("PID", 0), left("COMMAND", 7),
		right("GEN", 2), right("HEAD", 0), right("PEEKED", 4), right("TAIL", 0),
		right("DEPTH", 0), right("HIGH", 5), right("PUBLISHES", 3), right("WAKES", 6),
		right("SUPPR", 3), right("REFUSED", 6), left("ORDER", 1), left("MARK", 1), left("STATE", 0)}}
	for i := range lanes {
		l := &lanes[i]
		num := func(n *uint64) string { return orDash(n, o.number) }
		t.add(strconv.Itoa(l.Row), orDash(l.PID, strconv.Itoa), orDash(l.Command, printable),
			num(l.Generation), num(l.Head), num(l.Peeked), num(l.Tail), num(l.Depth),
			num(l.HighWater), num(l.Publishes), num(l.Wakes), num(l.WakesSuppressed),
			num(l.Refused), orDash(l.Order, printable), laneMarks(l), printable(l.State))
		t.note("lane "+strconv.Itoa(l.Row), l.Error)
	}
	return t.lines(!o.noHeader, p, "    ")
}

// fabricLines is the table of what endpoints send, as one of both ends sees it.
func fabricLines(lanes []ctl.FabricLane, end string, o *output, p page) []string {
	t := &table{columns: []column{right("ROW", 1), right("PLACE", 2), left(end, 0),
		left("OUTBOX", 3), right("PID", 0), left("COMMAND", 7), right("SENT", 0),
		right("EXAMINED", 0), right("DEPTH", 0), right("GRANTED", 5), right("CONTROL", 6),
		left("STAGE", 0), left("MARK", 4), left("STATE", 0)}}
	for i := range lanes {
		l := &lanes[i]
		num := func(n *uint64) string { return orDash(n, o.number) }
		var marks []string
		if l.Parked {
			marks = append(marks, "parked")
		}
		if l.Owed != nil && *l.Owed {
			marks = append(marks, "owed")
		}
		t.add(orDash(l.Row, strconv.Itoa), strconv.Itoa(l.Place), orDash(l.Peer, printable),
			printable(l.PeerOutbox), orDash(l.PID, strconv.Itoa), orDash(l.Command, printable),
			num(l.Sent), num(l.Examined), num(l.Unexamined), orDash(l.GrantedBytes, o.bytes),
			num(l.Controls), orDash(l.Stage, printable), cmp.Or(strings.Join(marks, ","), "-"),
			printable(l.State))
	}
	return t.lines(!o.noHeader, p, "    ")
}

// laneMarks is what there is to say about a lane beside its state.
func laneMarks(l *ctl.Lane) string {
	var words []string
	for _, w := range []struct {
		on   *bool
		text string
	}{{&l.Own, "own"}, {l.Parked, "parked"}} {
		if w.on != nil && *w.on {
			words = append(words, w.text)
		}
	}
	return cmp.Or(strings.Join(words, ","), "-")
}

// objectLines is the table of what stands beside the queues.
func objectLines(objects []ctl.Object, o *output, p page) []string {
	t := &table{columns: []column{left("OBJECT", 0), left("KIND", 0), right("SIZE", 2),
		left("PROCESS", 3), left("HOLDS", 1), left("STATE", 0)}}
	for i := range objects {
		b := &objects[i]
		t.add(printable(b.Name), orDash(b.Kind, printable), orDash(b.SizeBytes, o.bytes),
			processWords(b.Process), objectHolds(b, o), printable(b.State))
		t.note(b.Name, b.Error)
	}
	return t.lines(!o.noHeader, p, "")
}

// objectHolds is what matters most of an object.
func objectHolds(b *ctl.Object, o *output) string {
	switch {
	case b.Counter != nil:
		c := b.Counter
		words := fmt.Sprintf("value %s, errors %s, open %d", o.number(c.Value), o.number(c.Errors),
			len(c.Handles))
		if c.More {
			words += " or more"
		}
		return words
	case b.Addresses != nil:
		return fmt.Sprintf("%d of %d, %s", b.Addresses.Used, b.Addresses.Count,
			printable(b.Addresses.Format))
	case b.Fabric != nil:
		return fmt.Sprintf("%d of %d send, %s unexamined", len(b.Fabric.Lanes), b.Fabric.MaxPeers,
			o.number(unexamined(b.Fabric.Lanes)))
	case b.Outbox != nil:
		return fmt.Sprintf("%d of %d lanes of %s, %s unexamined", len(b.Outbox.Lanes),
			b.Outbox.MaxPeers, printable(b.Outbox.Endpoint), o.number(unexamined(b.Outbox.Lanes)))
	case b.Kind != nil && *b.Kind == shm.KindEndpoint.String():
		return "see shmctl xdp"
	case b.Domain != nil:
		words := "nobody waits"
		if b.Domain.Sleeping {
			words = "somebody waits"
		}
		return fmt.Sprintf("%s, %d ready", words, b.Domain.Ready)
	}
	return "-"
}

func unexamined(lanes []ctl.FabricLane) (n uint64) {
	for i := range lanes {
		if u := lanes[i].Unexamined; u != nil {
			n += *u
		}
	}
	return n
}

func printableList(names []string) string {
	words := make([]string, len(names))
	for i, n := range names {
		words[i] = printable(n)
	}
	return cmp.Or(strings.Join(words, ", "), "-")
}

// addFields prints what a struct says of an object, but for lanes, which have a table.
func addFields(add func(key, value string), of any, o *output) {
	for key, v := range fields(of) {
		switch list := v.Interface().(type) {
		case []string:
			add(key, printableList(list))
		case []ctl.CounterHandle:
			addHandles(add, list, o)
		case []ctl.GroupMember:
			for _, m := range list {
				add("member "+strconv.Itoa(m.Seat), fmt.Sprintf("pid %s, command %s, outbox %s",
					orDash(m.PID, strconv.Itoa), orDash(m.Command, printable),
					orDash(m.Outbox, printable)))
			}
		case []ctl.FabricLane:
		default:
			add(key, valueText(key, v, o))
		}
	}
}

func addHandles(add func(key, value string), handles []ctl.CounterHandle, o *output) {
	for _, h := range handles {
		words := []string{"pid " + orDash(h.PID, strconv.Itoa)}
		if h.Command != nil {
			words = append(words, "command "+printable(*h.Command))
		}
		switch {
		case h.Threshold == nil:
		case *h.Threshold == 0: // as in a set
			words = append(words, "sleeps until anything changes")
		default:
			words = append(words, "sleeps until "+o.number(*h.Threshold))
		}
		add("handle "+strconv.Itoa(h.Seat), strings.Join(words, ", "))
	}
}
