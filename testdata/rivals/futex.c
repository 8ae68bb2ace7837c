/* The raw primitive behind a blocked reader: a word per direction, FUTEX_WAKE and FUTEX_WAIT. */
#include "bench.h"
#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>

typedef _Atomic uint32_t word32;

static void wake(word32 *w, uint32_t value)
{
	atomic_store(w, value);
	syscall(SYS_futex, w, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static void await(word32 *w, uint32_t value)
{
	uint32_t seen;

	while ((seen = atomic_load(w)) != value) {
		if (syscall(SYS_futex, w, FUTEX_WAIT, seen, NULL, NULL, 0) != 0 && errno != EAGAIN &&
		    errno != EINTR) {
			perror("futex");
			exit(1);
		}
	}
}

static void prepare(const struct command *c)
{
	(void)c;
	atomic_store(at(WORD_0), 0);
	atomic_store(at(WORD_1), 0);
}

static struct answer run(const struct command *c)
{
	word32 *to_0 = (word32 *)at(WORD_0), *to_1 = (word32 *)at(WORD_1);
	struct answer a = { 0, 0 };
	uint64_t began = now_ns();

	for (uint32_t i = 1; i <= c->count; i++) {
		if (role == 0) {
			spin_for(THINK_NS);
			wake(to_1, i);
			await(to_0, i);
		} else {
			await(to_1, i);
			spin_for(THINK_NS);
			wake(to_0, i);
		}
	}
	a.ns = role == 0 ? now_ns() - began - 2 * THINK_NS * c->count : 0;
	return a;
}
