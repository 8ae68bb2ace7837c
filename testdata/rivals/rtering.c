/*
 * DPDK's rte_ring with one producer and one consumer, filled and read in place: what a user of DPDK
 * would hand completions over with. It needs nothing of DPDK but its headers.
 */
#include "bench.h"
#include "slots.h"

#include <rte_ring.h>
#include <rte_ring_peek_zc.h>

#define SLOT_BYTES (SLOT_WORDS * 8)

static struct rte_ring *ring_at(size_t offset) { return (struct rte_ring *)(area + offset); }

static inline uint64_t *slot(const struct rte_ring_zc_data *z, unsigned i)
{
	return i < z->n1 ? (uint64_t *)z->ptr1 + i * SLOT_WORDS
			 : (uint64_t *)z->ptr2 + (i - z->n1) * SLOT_WORDS;
}

static inline uint64_t produce(struct rte_ring *r, uint64_t from, uint64_t batch, uint64_t count)
{
	uint64_t end = from + count;
	struct rte_ring_zc_data z;

	while (from != end) {
		unsigned want = end - from < batch ? end - from : batch;
		while (rte_ring_enqueue_zc_bulk_elem_start(r, SLOT_BYTES, want, &z, NULL) == 0)
			;
		for (unsigned k = 0; k < want; k++)
			fill(slot(&z, k), from + k);
		rte_ring_enqueue_zc_elem_finish(r, want);
		from += want;
	}
	return end;
}

static inline uint64_t consume(struct rte_ring *r, uint64_t batch, uint64_t count, uint64_t pauses)
{
	uint64_t total = 0;
	struct rte_ring_zc_data z;

	while (count > 0) {
		unsigned want = count < batch ? count : batch, have;
		while ((have = rte_ring_dequeue_zc_burst_elem_start(r, SLOT_BYTES, want, &z, NULL)) == 0)
			for (uint64_t i = 0; i < pauses; i++)
				relax();
		for (unsigned k = 0; k < have; k++)
			total += sum(slot(&z, k));
		rte_ring_dequeue_zc_elem_finish(r, have);
		count -= have;
	}
	return total;
}

static void prepare(const struct command *c)
{
	for (int i = 0; i < 2; i++) {
		struct rte_ring *r = ring_at(i ? RING_1 : RING_0);
		memset(r, 0, sizeof *r);
		r->flags = RING_F_SP_ENQ | RING_F_SC_DEQ;
		r->size = CAPACITY;
		r->mask = CAPACITY - 1;
		r->capacity = CAPACITY - 1;
		r->prod.sync_type = r->cons.sync_type = RTE_RING_SYNC_ST;
		r->prod.head = r->prod.tail = r->cons.head = r->cons.tail = (uint32_t)c->start;
	}
}

static struct answer run(const struct command *c)
{
	int duplex = strcmp(c->name, "oneway") == 0;
	struct rte_ring *out = ring_at(duplex && role ? RING_1 : RING_0);
	struct rte_ring *in = ring_at(duplex && !role ? RING_1 : RING_0);
	struct answer a = { 0, 0 };
	uint64_t began = now_ns(), at = c->start;

	for (uint64_t i = 0; duplex && i < c->count; i++) {
		if (role == 0)
			at = produce(out, at, 1, 1);
		a.checksum += consume(in, 1, 1, c->pauses);
		if (role == 1)
			at = produce(out, at, 1, 1);
	}
	if (!duplex && role == 0)
		produce(out, at, c->batch, c->count);
	else if (!duplex)
		a.checksum = consume(in, c->batch, c->count, c->pauses);
	if (role == (duplex ? 0 : 1))
		a.ns = now_ns() - began;
	return a;
}
