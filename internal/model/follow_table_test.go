package model

func init() {
	with := func(m followModel) func(string) protocol[followState] {
		return func(bug string) protocol[followState] { m := m; m.bug = bug; return m }
	}
	f := family{title: "Readers of other users that follow one another",
		variants: []familyVariant{
			familyOf("a successor", smallest,
				with(followModel{items: followItems, readers: 2, writerDies: true})),
			familyOf("two successors", short,
				with(followModel{items: followItems, readers: followReaders})),
			familyOf("two successors, the writer dies", complete,
				with(followModel{items: followItems, readers: followReaders, writerDies: true})),
			familyOf("two successors, x3", complete,
				with(followModel{items: 3, readers: followReaders, writerDies: true})),
		}}
	for _, d := range []string{followAlive, followHeadFirst, followUnpeeked, followUnheeded,
		followPeekLate, followReadsOn, followTailFirst, followDrops} {
		f.mutants = append(f.mutants, familyMutant{base: "a successor", text: d})
	}
	for _, d := range []string{followForgets, followAttached, followNoLook, followOpen} {
		f.mutants = append(f.mutants, familyMutant{base: "two successors", text: d, size: short})
	}
	families = append(families, f)
}
