/* The raw primitive behind one-way latency: one cache line each way, nothing else. */
#include "bench.h"

static void prepare(const struct command *c) { (void)c; }

static struct answer run(const struct command *c)
{
	struct answer a = { 0, 0 };
	uint64_t began = now_ns();

	/* The probe before the round left its own counts in the two words. */
	line_ns(c->count, PROBE_TRIPS * PROBE_BURSTS);
	a.ns = role == 0 ? now_ns() - began : 0;
	return a;
}
