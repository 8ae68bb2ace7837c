package bench

const (
	queuePrefix = "cq-" // of our child's commands on whole queues
	readBatch   = 64    // entries a read, in rows about reads of many
	// readShare: filling a queue takes libfabric many times as long as reading it.
	readShare = 16
	// tripPauses is what a polling application should do between two empty reads: without, a
	// processor that runs ahead in a loop of reads has all of it to throw away when the entry comes.
	// The two bare lines pause as much; the one line, which needs it less, does not.
	tripPauses = 2
)

// queueCases are the rows about completion queues and what belongs to them.
func queueCases(o Options) []benchCase {
	const libfabric, tagged = "libfabric", "libfabric-tagged-inject"
	same := func(name string, batch int) benchCase {
		return benchCase{name: name, batch: batch, ours: queuePrefix + name, rival: name,
			rivalName: libfabric, source: libfabricSource, solo: true}
	}
	read := same("read", readBatch)
	read.share = readShare
	cases := []benchCase{same("read-bare", 1), same("read-empty", 1), read, same("eq", 1),
		same("cntr-add", 1), same("cntr-read", 1)}
	for _, batch := range o.Batches {
		cases = append(cases, benchCase{name: "rate", batch: batch, pauses: throughputPauses,
			ours: "cq-rate", rival: "rate", rivalName: tagged, source: libfabricSource,
			perSecond: true})
	}
	trip := benchCase{name: "trip-line", batch: 1, pauses: tripPauses, ours: "cq-trip", rival: "line",
		rivalName: "cache line", source: "pingpong"}
	cases = append(cases, trip)
	trip.name, trip.rival, trip.rivalName = "trip-lines", "lines", "two cache lines"
	cases = append(cases, trip)
	for _, batch := range o.Batches {
		trip.name, trip.batch, trip.rival, trip.rivalName = "trip", batch, "trip", tagged
		trip.source = libfabricSource
		cases = append(cases, trip)
	}
	return append(withSelf(o, cases), priceCases()...)
}

// priceCases measure us against ourselves: what an option costs.
func priceCases() []benchCase {
	price := func(command, option, plain string, batch int) benchCase {
		return benchCase{name: command + "+" + option, batch: batch, solo: true, rivalOurs: true,
			ours: queuePrefix + command + "+" + option, rival: queuePrefix + command,
			rivalName: plain}
	}
	shared := price("read", "shared", "ours-unshared", readBatch)
	shared.share = 4
	cases := []benchCase{price("read-empty", "shared", "ours-unshared", 1), shared,
		price("post-read", "shared", "ours-unshared", 1)}
	for _, wait := range []string{"none", "fd", "yield"} {
		cases = append(cases, price("post-read", wait, "ours-unspec", 1))
	}
	for _, wait := range []string{"fd", "yield"} { // round trips of readers that block
		c := price("sread", wait, "ours-unspec", 1)
		c.solo, c.sleeps = false, true
		cases = append(cases, c)
	}
	return cases
}
