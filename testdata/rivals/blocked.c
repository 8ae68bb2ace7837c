/*
 * The raw primitives behind a blocked reader. "futex": a word per direction, FUTEX_WAKE and
 * FUTEX_WAIT. "eventfd": a descriptor per direction.
 */
#include "bench.h"
#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>

typedef _Atomic uint32_t word32;

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static void futex_wake(int to, uint32_t value)
{
	word32 *w = (word32 *)at(to ? WORD_1 : WORD_0);
	atomic_store(w, value);
	syscall(SYS_futex, w, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static void futex_await(int to, uint32_t value)
{
	word32 *w = (word32 *)at(to ? WORD_1 : WORD_0);
	uint32_t seen;

	while ((seen = atomic_load(w)) != value)
		if (syscall(SYS_futex, w, FUTEX_WAIT, seen, NULL, NULL, 0) != 0 && errno != EAGAIN &&
		    errno != EINTR)
			die("futex");
}

static void eventfd_wake(int to, uint32_t value)
{
	uint64_t one = 1;
	(void)value;
	if (write(to ? EVENT_FD_1 : EVENT_FD_0, &one, sizeof one) != sizeof one)
		die("eventfd write");
}

static void eventfd_await(int to, uint32_t value)
{
	uint64_t many;
	(void)value;
	if (read(to ? EVENT_FD_1 : EVENT_FD_0, &many, sizeof many) != sizeof many)
		die("eventfd read");
}

static void prepare(const struct command *c)
{
	(void)c;
	atomic_store(at(WORD_0), 0);
	atomic_store(at(WORD_1), 0);
}

static struct answer run(const struct command *c)
{
	int words = strcmp(c->name, "futex") == 0;
	void (*wake)(int, uint32_t) = words ? futex_wake : eventfd_wake;
	void (*await)(int, uint32_t) = words ? futex_await : eventfd_await;
	struct answer a = { 0, 0 };
	uint64_t began = now_ns();

	for (uint32_t i = 1; i <= c->count; i++) {
		if (role == 0) {
			spin_for(THINK_NS);
			wake(1, i);
			await(0, i);
		} else {
			await(1, i);
			spin_for(THINK_NS);
			wake(0, i);
		}
	}
	a.ns = role == 0 ? now_ns() - began - 2 * THINK_NS * c->count : 0;
	return a;
}
