/* The raw primitive behind a reader that blocks on a descriptor: an eventfd per direction. */
#include "bench.h"

static void ring_bell(int fd)
{
	uint64_t one = 1;

	if (write(fd, &one, sizeof one) != sizeof one) {
		perror("eventfd write");
		exit(1);
	}
}

static void await(int fd)
{
	uint64_t value;

	if (read(fd, &value, sizeof value) != sizeof value) {
		perror("eventfd read");
		exit(1);
	}
}

static void prepare(const struct command *c) { (void)c; }

static struct answer run(const struct command *c)
{
	struct answer a = { 0, 0 };
	uint64_t began = now_ns();

	for (uint64_t i = 0; i < c->count; i++) {
		if (role == 0) {
			spin_for(THINK_NS);
			ring_bell(EVENT_FD_1);
			await(EVENT_FD_0);
		} else {
			await(EVENT_FD_1);
			spin_for(THINK_NS);
			ring_bell(EVENT_FD_0);
		}
	}
	a.ns = role == 0 ? now_ns() - began - 2 * THINK_NS * c->count : 0;
	return a;
}
