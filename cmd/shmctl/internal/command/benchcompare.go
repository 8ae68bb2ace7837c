package command

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/shmring/shmring/cmd/shmctl/internal/bench"
)

// changeMargin within which a program is as fast as it was.
const changeMargin = 0.03

const benchCompareLong = `Compare what bench -o json said of two programs.

Give two files of each round, the older program's first: measure in turns, since the machine changes
too. RATIO is the median of the newer program's figure divided by the older one's of the same round,
both as they stand to their rival where that is not ours; INTERVAL holds it with 95% confidence,
which takes six rounds. "As fast" means that it is not slower by more than 3%; the exit code is 1 if
a row is slower. .ci/bench builds and measures two commits so.`

func newBenchCompare() *cobra.Command {
	return &cobra.Command{
		Use:     "compare OLD NEW [OLD NEW]...",
		Short:   "Compare what bench -o json said of two programs",
		Long:    benchCompareLong,
		Example: "  shmctl bench compare old1.json new1.json old2.json new2.json",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 || len(args)%2 != 0 {
				return &usageError{verb: verbPath(cmd), err: errors.New("wants pairs of files")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return compareBenches(cmd, args)
		},
	}
}

func compareBenches(cmd *cobra.Command, files []string) error {
	rounds := map[string][2][][]bench.Row{} // by bench: older, newer
	for i, path := range files {
		var v struct{ Bench map[string][]bench.Row }
		text, err := os.ReadFile(path)
		if err == nil {
			err = json.Unmarshal(text, &v)
		}
		if err == nil && len(v.Bench) == 0 {
			err = errors.New("no result of bench -o json")
		}
		if err != nil {
			return opFailed(verbPath(cmd), path, err)
		}
		for name, rows := range v.Bench {
			all := rounds[name]
			all[i%2] = append(all[i%2], rows)
			rounds[name] = all
		}
	}
	t, slower := benchTable(), 0
	for _, name := range slices.Sorted(maps.Keys(rounds)) {
		rows := bench.Compare(rounds[name][0], rounds[name][1])
		for i := range rows {
			t.add(benchRow(name, &rows[i], changeMargin)...)
			if verdict(&rows[i], changeMargin) == slowerThan+rows[i].RivalName {
				slower++
			}
		}
	}
	t.drop("CPU/PKT", "PKT/CALL", "AGAINST")
	w := cmd.OutOrStdout()
	if err := printLines(w, t.lines(true, terminalOf(w).page(), "")); err != nil {
		return err
	}
	if slower > 0 {
		return opFailed(verbPath(cmd), "", fmt.Errorf("%d rows are slower than before", slower))
	}
	return nil
}
