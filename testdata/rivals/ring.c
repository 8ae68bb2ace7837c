/*
 * The C ring that shmring's is measured against: one producer, one consumer, 64-byte slots filled
 * and read in place, 64-bit free-running indices on lines of their own, the peer's index cached,
 * one release store per batch. It has no doorbell: it pays nothing for a reader that may sleep.
 */
#include "bench.h"
#include "slots.h"

#include <sys/resource.h>

struct ring {
	word64 *tail, *head;
	uint64_t *slots;
};

static struct ring ring_at(size_t offset)
{
	struct ring r = { at(offset + RING_TAIL), at(offset + RING_HEAD),
			  (uint64_t *)(area + offset + RING_SLOTS) };
	return r;
}

static inline uint64_t *slot(const struct ring *r, uint64_t i)
{
	return r->slots + (i & (CAPACITY - 1)) * SLOT_WORDS;
}

struct producer {
	struct ring r;
	uint64_t tail, limit; /* limit: the tail that the cached head forbids */
};

struct consumer {
	struct ring r;
	uint64_t head, seen; /* seen: the cached tail */
	uint64_t pauses;
};

static inline void produce(struct producer *p, uint64_t batch, uint64_t count)
{
	uint64_t end = p->tail + count;

	while (p->tail != end) {
		uint64_t want = end - p->tail < batch ? end - p->tail : batch;
		while (p->limit - p->tail < want)
			p->limit = atomic_load_explicit(p->r.head, memory_order_acquire) + CAPACITY;
		for (uint64_t k = 0; k < want; k++)
			fill(slot(&p->r, p->tail + k), p->tail + k);
		p->tail += want;
		atomic_store_explicit(p->r.tail, p->tail, memory_order_release);
	}
}

static inline uint64_t consume(struct consumer *c, uint64_t batch, uint64_t count)
{
	uint64_t end = c->head + count, total = 0;

	while (c->head != end) {
		while (c->seen == c->head) {
			c->seen = atomic_load_explicit(c->r.tail, memory_order_acquire);
			if (c->seen != c->head)
				break;
			for (uint64_t i = 0; i < c->pauses; i++)
				relax();
		}
		uint64_t have = c->seen - c->head < batch ? c->seen - c->head : batch;
		for (uint64_t k = 0; k < have; k++)
			total += sum(slot(&c->r, c->head + k));
		c->head += have;
		atomic_store_explicit(c->r.head, c->head, memory_order_release);
	}
	return total;
}

/* The number of the count for a time, as TimeCount in internal/stage. */
static inline uint64_t bucket(uint64_t ns)
{
	int length = ns ? 64 - __builtin_clzll(ns) : 0;
	uint64_t e = length > TAIL_SUB_BITS + 1 ? (uint64_t)(length - TAIL_SUB_BITS - 1) : 0;
	uint64_t i = (e << TAIL_SUB_BITS) + (ns >> e), last = TAIL_WORDS - TAIL_COUNTS - 1;
	return i < last ? i : last;
}

static uint64_t preemptions(void)
{
	struct rusage u;
	return getrusage(RUSAGE_THREAD, &u) == 0 ? (uint64_t)u.ru_nivcsw : 0;
}

/* pingpong of which role 0 writes down how long each round trip took */
static struct answer timed(struct producer p, struct consumer in, uint64_t count)
{
	struct answer a = { 0, 0 };
	uint64_t *words = (uint64_t *)(area + TAIL_0), longest = 0, preempted = preemptions();

	if (role == 0)
		memset(words + TAIL_LONGEST, 0, (TAIL_WORDS - TAIL_LONGEST) * sizeof *words);
	uint64_t first = now_ns(), began = first;
	for (uint64_t i = 0; i < count; i++) {
		if (role == 0)
			produce(&p, 1, 1);
		a.checksum += consume(&in, 1, 1);
		if (role == 1)
			produce(&p, 1, 1);
		uint64_t now = now_ns(), took = now - began;
		began = now;
		if (role == 0) {
			longest = took > longest ? took : longest;
			words[TAIL_COUNTS + bucket(took)]++;
		}
	}
	words[TAIL_PREEMPT + role] = preemptions() - preempted;
	if (role == 0) {
		words[TAIL_LONGEST] = longest;
		a.ns = began - first;
	}
	for (int i = 2; i < 6; i++) /* nothing is collected */
		words[i] = 0;
	return a;
}

static struct answer pingpong(struct producer p, struct consumer in, uint64_t count)
{
	struct answer a = { 0, 0 };
	uint64_t began = now_ns();

	for (uint64_t i = 0; i < count; i++) {
		if (role == 0)
			produce(&p, 1, 1);
		a.checksum += consume(&in, 1, 1);
		if (role == 1)
			produce(&p, 1, 1);
	}
	a.ns = role == 0 ? now_ns() - began : 0;
	return a;
}

static void prepare(const struct command *c)
{
	for (int i = 0; i < 2; i++) {
		struct ring r = ring_at(i ? RING_1 : RING_0);
		atomic_store(r.tail, c->start);
		atomic_store(r.head, c->start);
	}
}

static struct answer run(const struct command *c)
{
	int tail = strcmp(c->name, "tail") == 0;
	int duplex = tail || strcmp(c->name, "oneway") == 0;
	struct producer p = { ring_at(duplex && role ? RING_1 : RING_0), c->start,
			      c->start + CAPACITY };
	struct consumer in = { ring_at(duplex && !role ? RING_1 : RING_0), c->start, c->start,
			       c->pauses };
	struct answer a = { 0, 0 };

	if (tail)
		return timed(p, in, c->count);
	if (duplex)
		return pingpong(p, in, c->count);
	uint64_t began = now_ns();
	if (role == 0) {
		produce(&p, c->batch, c->count);
	} else {
		a.checksum = consume(&in, c->batch, c->count);
		a.ns = now_ns() - began;
	}
	return a;
}
