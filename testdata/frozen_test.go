package testdata

import (
	_ "embed"
	"strings"
	"testing"
)

//go:embed guards_states.tsv
var guardsStates string

func TestFrozen(t *testing.T) {
	rows, err := Conformance()
	if err != nil {
		t.Fatal(err)
	}
	ids := map[string][]string{}
	for _, r := range rows {
		ids[FrozenRow] = append(ids[FrozenRow], r.ID)
	}
	for _, g := range guardRows(t) {
		ids[FrozenGuard] = append(ids[FrozenGuard], g.ID)
	}
	for line := range strings.Lines(guardsStates) {
		name, _, _ := strings.Cut(line, "\t")
		ids[FrozenModel] = append(ids[FrozenModel], name)
	}
	for kind, now := range ids {
		if err := CheckFrozen(kind, now); err != nil {
			t.Error(err)
		}
	}
}

func TestFrozenRefuses(t *testing.T) {
	const head = frozenColumns + "\n"
	for name, c := range map[string]struct {
		text string
		now  []string
		want string // empty if it is right
	}{
		"same":            {head + "step\ta\t-\n", []string{"a"}, ""},
		"replaced":        {head + "step\ta\tb\nstep\tb\t-\n", []string{"b"}, ""},
		"none":            {head + "step\ta\tnone: no such store\nstep\tb\t-\n", []string{"b"}, ""},
		"other kind":      {head + "step\ta\t-\nflip\tz\t-\n", []string{"a"}, ""},
		"gone":            {head + "step\ta\t-\nstep\tb\t-\n", []string{"a"}, `"b" is gone`},
		"new":             {head + "step\ta\t-\n", []string{"a", "b"}, "add the line step\tb\t-"},
		"both":            {head + "step\ta\tb\nstep\tb\t-\n", []string{"a", "b"}, "said to be replaced"},
		"by what is gone": {head + "step\ta\tb\n", []string{}, "which is not there"},
		"no reason":       {head + "step\ta\tnone: \n", []string{}, "without a reason"},
		"twice":           {head + "step\ta\t-\nstep\ta\t-\n", []string{"a"}, "twice"},
		"kind":            {head + "stop\ta\t-\n", []string{"a"}, "want a kind"},
		"columns":         {head + "step\ta\n", []string{"a"}, "want a kind"},
		"head":            {"step\ta\t-\n", []string{"a"}, "first line"},
		"empty":           {head + "flip\ta\t-\n", nil, "no line of kind"},
	} {
		err := checkFrozen(c.text, FrozenStep, c.now)
		if c.want == "" && err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

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
