package testdata

import (
	"strings"
	"testing"
)

func TestConformanceRows(t *testing.T) {
	rows, err := Conformance()
	if err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	for _, r := range rows {
		count[r.Kind]++
	}
	for _, kind := range kinds {
		t.Logf("%s: %d rows", kind, count[kind])
		if count[kind] == 0 {
			t.Errorf("no row is %s", kind)
		}
	}
}

func TestConformanceRefuses(t *testing.T) {
	const good = "a\tfi_poll.3\twhat\ttest\tcq.TestX"
	if rows, err := parse(columns + "\n" + good + "\n"); err != nil || len(rows) != 1 {
		t.Fatal(rows, err)
	}
	for text, want := range map[string]string{
		good:                                        "first line",
		columns + "\n" + good + "\n" + good:         "twice",
		columns + "\n" + good + "\tmore":            "6 columns",
		columns + "\n\n" + good:                     "1 columns",
		columns + "\na\tfi_poll.3\t\ttest\tTestX":   "empty",
		columns + "\na\tfi_poll.3\t x\ttest\tT":     "padded",
		columns + "\na\tfi_pool.3\tx\ttest\tT":      "no such page",
		columns + "\na\tfi_poll.3\tx\tmaybe\tT":     "no such kind",
		columns + "\na\tfi_poll.3\tx\ttest\tcq.X":   "name of a test",
		columns + "\na\tfi_poll.3\tx\tendpoints\tT": "no such kind",
	} {
		if _, err := parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}
