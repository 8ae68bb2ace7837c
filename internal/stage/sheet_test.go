package stage

import (
	"strings"
	"testing"
	"time"
)

// TestSheet: the same facts stand in both forms.
func TestSheet(t *testing.T) {
	var s Sheet
	s.Text("Seed %d.", 7)
	s.Row("kills", 12)
	s.Each("found", []string{"a | b"})
	s.Table("role", "cpu", "counts")
	s.Row("écrivain", 1500*time.Microsecond+time.Nanosecond, "turns 3")
	s.Row("r", time.Minute, "")
	s.Text("And that was it.")
	var people, document strings.Builder
	s.Print(&people)
	s.Markdown(&document)
	want := `Seed 7.

kills  12
found  a | b

role        cpu  counts
écrivain  1.5ms  turns 3
r          1m0s

And that was it.
`
	if people.String() != want {
		t.Errorf("printed\n%s\nwant\n%s", people.String(), want)
	}
	want = `Seed 7.

| | |
|---|---|
| kills | 12 |
| found | a / b |

| role | cpu | counts |
|---|---|---|
| écrivain | 1.5ms | turns 3 |
| r | 1m0s | |

And that was it.
`
	if document.String() != want {
		t.Errorf("document\n%s\nwant\n%s", document.String(), want)
	}
}
