package testdata

import (
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"strings"
)

//go:embed frozen.tsv
var frozen string

// Kinds of proofs whose ids are frozen.
const (
	FrozenRow   = "row"   // of conformance.tsv
	FrozenGuard = "guard" // of guards.tsv
	FrozenModel = "model" // a family of states that an explorer goes through
	FrozenStep  = "step"  // a label of internal/crash
	// Calls whose words are changed between their loads, of queues, a device process and endpoints.
	FrozenFlip       = "flip"
	FrozenDeviceFlip = "device flip"
	FrozenFabricFlip = "fabric flip"
)

const (
	frozenColumns = "kind\tid\treplaced by"
	frozenSame    = "-"      // the proof stands under its id
	frozenNone    = "none: " // nothing replaces it, for the reason behind this
)

// CheckFrozen holds the ids of a kind that there are against those of frozen.tsv: one that
// vanished has to say there by which it is replaced, or why by none, and a new one has to be added.
// So a proof that moves with the code cannot fall silent.
func CheckFrozen(kind string, ids []string) error {
	return checkFrozen(frozen, kind, ids)
}

func checkFrozen(text, kind string, ids []string) error {
	known, err := parseFrozen(text, kind)
	if err != nil {
		return err
	}
	now := map[string]bool{}
	for _, id := range ids {
		now[id] = true
	}
	var bad []string
	for id, by := range known {
		_, why, none := strings.Cut(by, frozenNone)
		switch {
		case by == frozenSame && !now[id]:
			bad = append(bad, fmt.Sprintf("%s %q is gone: say in its line what replaces it", kind, id))
		case by != frozenSame && now[id]:
			bad = append(bad, fmt.Sprintf("%s %q is there and said to be replaced by %q", kind, id, by))
		case none && strings.TrimSpace(why) == "":
			bad = append(bad, fmt.Sprintf("%s %q is gone without a reason", kind, id))
		case by != frozenSame && !none && !now[by]:
			bad = append(bad, fmt.Sprintf("%s %q is replaced by %q, which is not there", kind, id, by))
		}
	}
	for _, id := range slices.Sorted(maps.Keys(now)) {
		if _, ok := known[id]; !ok {
			bad = append(bad, fmt.Sprintf("add the line %s", strings.Join(
				[]string{kind, id, frozenSame}, "\t")))
		}
	}
	if len(bad) > 0 {
		slices.Sort(bad)
		return fmt.Errorf("testdata/frozen.tsv:\n%s", strings.Join(bad, "\n"))
	}
	return nil
}

// parseFrozen returns what became of each id of a kind.
func parseFrozen(text, kind string) (map[string]string, error) {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if lines[0] != frozenColumns {
		return nil, fmt.Errorf("frozen.tsv: the first line is %q, want %q", lines[0], frozenColumns)
	}
	kinds := []string{FrozenRow, FrozenGuard, FrozenModel, FrozenStep, FrozenFlip,
		FrozenDeviceFlip, FrozenFabricFlip}
	known := map[string]string{}
	for i, line := range lines[1:] {
		c := strings.Split(line, "\t")
		if len(c) != 3 || c[1] == "" || c[2] == "" || !slices.Contains(kinds, c[0]) {
			return nil, fmt.Errorf("frozen.tsv:%d: want a kind, an id and what replaces it: %q", i+2, line)
		}
		if c[0] != kind {
			continue
		}
		if _, twice := known[c[1]]; twice {
			return nil, fmt.Errorf("frozen.tsv:%d: the id stands twice: %q", i+2, line)
		}
		known[c[1]] = c[2]
	}
	if len(known) == 0 {
		return nil, fmt.Errorf("frozen.tsv: no line of kind %q", kind)
	}
	return known, nil
}
