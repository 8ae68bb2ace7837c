package command

import (
	"cmp"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"github.com/shmring/shmring/ctl"
	"github.com/shmring/shmring/shm"
)

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

// showObject prints the fields of an object in the order of the struct, so that none is forgotten.
func showObject(b *ctl.Object, o *output, p page) []string {
	out := []string{p.bold(printable(b.Name))}
	add := func(key, value string) { out = append(out, fieldLine(key, value, o)) }
	if b.Error != nil {
		return addError(out, b.Path, b.State, b.Error, o, p)
	}
	add("state", p.state(b.State))
	for key, v := range fields(b) {
		switch f := v.Interface().(type) {
		case *ctl.Process:
			add(key, processLine(f))
		case *ctl.Counter:
			if f != nil {
				addFields(add, f, o)
				addHandles(add, f.Handles, o)
			}
		case *ctl.Addresses:
			if f != nil {
				addFields(add, f, o)
			}
		case *ctl.Domain:
			if f != nil {
				addFields(add, f, o)
				add("queues", printableList(f.Queues))
			}
		default:
			if key != "name" && key != "error" && key != "state" {
				add(key, valueText(key, v, o))
			}
		}
	}
	return out
}

func printableList(names []string) string {
	words := make([]string, len(names))
	for i, n := range names {
		words[i] = printable(n)
	}
	return cmp.Or(strings.Join(words, ", "), "-")
}

// addFields prints the scalars of a struct.
func addFields(add func(key, value string), of any, o *output) {
	for key, v := range fields(of) {
		if v.Kind() != reflect.Slice {
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
		if h.Threshold != nil {
			words = append(words, "sleeps until "+o.number(*h.Threshold))
		}
		add("handle "+strconv.Itoa(h.Seat), strings.Join(words, ", "))
	}
}
