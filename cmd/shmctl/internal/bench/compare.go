package bench

import (
	"slices"
	"strings"
)

// Compare returns how rows differ between two programs, in the form of rows of the second one whose
// rival is the first: before and after have what each of them measured, round by round in turns.
// Where both have a rival that is not ours, what is compared is how they stand to it: the machine
// may differ from round to round, and does so for the rival, too. Rows that one of them does not
// have are left out.
func Compare(before, after [][]Row) []Row {
	var out []Row
	for _, r := range slices.Concat(after...) {
		same := func(o Row) bool {
			return o.Case == r.Case && o.Batch == r.Batch && o.RivalName == r.RivalName
		}
		if slices.ContainsFunc(out, same) {
			continue // of an earlier round
		}
		var ratios, olds, news []float64
		for i := range min(len(before), len(after)) {
			b, a := slices.IndexFunc(before[i], same), slices.IndexFunc(after[i], same)
			if a < 0 || b < 0 || before[i][b].Ours == nil || after[i][a].Ours == nil {
				continue
			}
			old, now := before[i][b], after[i][a]
			olds, news = append(olds, *old.Ours), append(news, *now.Ours)
			if old.Ratio != nil && now.Ratio != nil && !againstOurs(r.RivalName) {
				ratios = append(ratios, *now.Ratio / *old.Ratio)
			} else {
				ratios = append(ratios, *now.Ours / *old.Ours)
			}
		}
		c := Row{Case: r.Case, Batch: r.Batch, RivalName: r.RivalName, Unit: r.Unit,
			Rounds: len(ratios)}
		if len(ratios) > 0 {
			for _, xs := range [][]float64{ratios, olds, news} {
				slices.Sort(xs)
			}
			c.Ratio, c.Rival, c.Ours = ptr(quantile(ratios, 0.5)), ptr(quantile(olds, 0.5)),
				ptr(quantile(news, 0.5))
		}
		if low, high, ok := medianRanks(len(ratios)); ok {
			c.RatioLow, c.RatioHigh = ptr(ratios[low]), ptr(ratios[high])
		} else {
			c.Note = "too few rounds for an interval"
		}
		out = append(out, c)
	}
	for i := range out {
		out[i].RivalName = "before"
	}
	return out
}

// againstOurs reports whether a rival changes with us.
func againstOurs(rival string) bool {
	return strings.HasPrefix(rival, "ours-") || rival == linkedIn
}
