/*
 * The raw primitive behind round trips. "line": one cache line each way, nothing else. "lines": two
 * each way, a slot of a ring and then the index that says so, as every ring with an index moves them;
 * the slot is written and read whole.
 */
#include "bench.h"

static void prepare(const struct command *c)
{
	if (strcmp(c->name, "lines") == 0) {
		atomic_store(at(RING_0 + RING_TAIL), 0);
		atomic_store(at(RING_1 + RING_TAIL), 0);
	}
}

static inline volatile uint64_t *slot(size_t ring, uint64_t i)
{
	return (volatile uint64_t *)(area + ring + RING_SLOTS + i % CAPACITY * SLOT_WORDS * 8);
}

static void put(size_t ring, uint64_t i)
{
	volatile uint64_t *w = slot(ring, i);
	for (int k = 0; k < SLOT_WORDS; k++)
		w[k] = i + (uint64_t)k;
	atomic_store_explicit(at(ring + RING_TAIL), i, memory_order_release);
}

static uint64_t get(size_t ring, uint64_t i, uint64_t pauses)
{
	uint64_t sum = 0;
	while (atomic_load_explicit(at(ring + RING_TAIL), memory_order_acquire) != i)
		for (uint64_t p = 0; p < pauses; p++)
			relax();
	volatile uint64_t *w = slot(ring, i);
	for (int k = 0; k < SLOT_WORDS; k++)
		sum += w[k];
	return sum;
}

static struct answer run(const struct command *c)
{
	struct answer a = { 0, 0 };
	uint64_t began = now_ns();

	if (strcmp(c->name, "lines") == 0) {
		for (uint64_t i = 1; i <= c->count; i++) {
			if (role == 0)
				put(RING_0, i);
			a.checksum += get(role ? RING_0 : RING_1, i, c->pauses);
			if (role == 1)
				put(RING_1, i);
		}
		a.checksum = 0; /* the other side has no sum to compare it with */
	} else {
		/* The probe before the round left its own counts in the two words. */
		line_ns(c->count, PROBE_TRIPS * PROBE_BURSTS);
	}
	a.ns = role == 0 ? now_ns() - began : 0;
	return a;
}
