/*
 * What every rival shares with the Go side of the bench: the layout of the memory that two pinned
 * processes map, the barrier, the placement probe and the command loop. The offsets are those of
 * cmd/shmctl/internal/bench/child_linux.go; a test compares them.
 *
 * argv: ROLE CPU. Descriptor 3 is the memory, 4 and 5 are eventfds towards role 0 and role 1.
 * A command is one line "NAME BATCH PAUSES COUNT START EPOCH AREA"; the answer is one line
 * "NANOSECONDS CHECKSUM PROBE_BEFORE PROBE_AFTER SHARE CPU", where SHARE is how much of the round
 * this process was running and CPU for how many nanoseconds, with zeros for what this role did not
 * measure.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define AREA_BYTES 1048576
#define AREAS 32
#define BARRIER_0 0
#define BARRIER_1 128
#define PROBE_PING 256
#define PROBE_PONG 384
#define WORD_0 512
#define WORD_1 640
#define TAIL_0 4096
#define TAIL_PREEMPT 0
#define TAIL_LONGEST 6
#define TAIL_COUNTS 8
#define TAIL_WORDS 4096
#define TAIL_SUB_BITS 6
#define RING_0 65536
#define RING_1 524288
#define RING_TAIL 0
#define RING_HEAD 128
#define RING_SLOTS 4096
#define CAPACITY 4096
#define SLOT_WORDS 8

#define MEMORY_FD 3
#define EVENT_FD_0 4
#define EVENT_FD_1 5

#define THINK_NS 30000 /* before a wake, so that whoever is woken sleeps */
#define PROBE_TRIPS 64
#define PROBE_BURSTS 5
#define BARRIER_LOOKS 20000 /* before it sleeps between two */
#define BARRIER_NAP 50000

typedef _Atomic uint64_t word64;

static unsigned char *area; /* of this round */
static int role;

static inline word64 *at(size_t offset) { return (word64 *)(area + offset); }

static inline void relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("isb" ::: "memory");
#endif
}

static inline uint64_t clock_ns(clockid_t clock)
{
	struct timespec t;
	clock_gettime(clock, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline uint64_t now_ns(void) { return clock_ns(CLOCK_MONOTONIC); }

static void barrier(uint64_t epoch)
{
	word64 *mine = at(role ? BARRIER_1 : BARRIER_0), *other = at(role ? BARRIER_0 : BARRIER_1);
	atomic_store(mine, epoch);
	for (int looks = 0; atomic_load_explicit(other, memory_order_acquire) < epoch; looks++)
		if (looks < BARRIER_LOOKS)
			relax();
		else
			usleep(BARRIER_NAP / 1000);
}

/*
 * The runtime of a Go program that was idle looks every 20 us at what its threads do, and only
 * after some 20 ms every 10 ms: a process that keeps spinning is measured, not one that just woke
 * up. In C this changes nothing, but both sides must heat the processors alike.
 */
static void spin_for(uint64_t ns)
{
	for (uint64_t end = now_ns() + ns; now_ns() < end;)
		relax();
}

/* One-way transfer of a cache line in nanoseconds: the median of a few bursts; role 0 measures. */
static double line_ns(uint64_t trips, uint64_t from)
{
	word64 *ping = at(PROBE_PING), *pong = at(PROBE_PONG);
	uint64_t start = now_ns();
	for (uint64_t i = from + 1; i <= from + trips; i++) {
		if (role == 0) {
			atomic_store_explicit(ping, i, memory_order_release);
			while (atomic_load_explicit(pong, memory_order_acquire) != i)
				;
		} else {
			while (atomic_load_explicit(ping, memory_order_acquire) != i)
				;
			atomic_store_explicit(pong, i, memory_order_release);
		}
	}
	return (double)(now_ns() - start) / (double)trips / 2;
}

static double probe(uint64_t epoch)
{
	double got[PROBE_BURSTS];
	if (role == 0) {
		atomic_store(at(PROBE_PING), 0);
		atomic_store(at(PROBE_PONG), 0);
	}
	barrier(epoch);
	for (int i = 0; i < PROBE_BURSTS; i++) {
		double x = line_ns(PROBE_TRIPS, (uint64_t)i * PROBE_TRIPS);
		int j = i;
		for (; j > 0 && got[j - 1] > x; j--)
			got[j] = got[j - 1];
		got[j] = x;
	}
	return role == 0 ? got[PROBE_BURSTS / 2] : 0;
}

struct command {
	char name[32];
	uint64_t batch, pauses, count, start; /* pauses: between two looks at an empty ring */
};

struct answer {
	uint64_t ns, checksum;
};

/*
 * What a rival implements: prepare runs in role 0 before the barrier, run in both after it. One that
 * defines BENCH_SETUP has setup too, which runs in both before the barrier.
 */
static void prepare(const struct command *c);
static struct answer run(const struct command *c);
#ifdef BENCH_SETUP
static void setup(const struct command *c);
#endif

static void pin(int cpu)
{
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof set, &set) != 0) {
		perror("sched_setaffinity");
		exit(1);
	}
}

int main(int argc, char **argv)
{
	struct command c;
	uint64_t epoch, index, settle_ns;

	if (argc != 3) {
		fprintf(stderr, "usage: %s ROLE CPU, started by shmctl bench\n", argv[0]);
		return 2;
	}
	role = atoi(argv[1]);
	pin(atoi(argv[2]));
	unsigned char *mem = mmap(NULL, (size_t)AREAS * AREA_BYTES, PROT_READ | PROT_WRITE,
				  MAP_SHARED | MAP_POPULATE, MEMORY_FD, 0);
	if (mem == MAP_FAILED) {
		perror("mmap");
		return 1;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	while (scanf("%31s %lu %lu %lu %lu %lu %lu %lu", c.name, &c.batch, &c.pauses, &c.count,
		     &c.start, &epoch, &index, &settle_ns) == 8 && index < AREAS) {
		area = mem + index * AREA_BYTES;
#ifdef BENCH_SETUP
		setup(&c);
#endif
		if (role == 0)
			prepare(&c);
		barrier(epoch + 1);
		spin_for(settle_ns); /* as long as our side does */
		double before = probe(epoch + 2);
		barrier(epoch + 3);
		uint64_t began = now_ns(), cpu = clock_ns(CLOCK_THREAD_CPUTIME_ID);
		struct answer a = run(&c);
		cpu = clock_ns(CLOCK_THREAD_CPUTIME_ID) - cpu;
		double share = (double)cpu / (double)(now_ns() - began);
		double after = probe(epoch + 4);
		printf("%lu %lu %.1f %.1f %.3f %lu\n", a.ns, a.checksum, before, after, share, cpu);
	}
	return 0;
}
