/* UDP sockets of the kernel's stack, connected, in batches by sendmmsg and recvmmsg. */
#define BENCH_SETUP
#include "bench.h"
#include "packets.h"

struct port {
	struct end end;
	int fd;
	unsigned char out[MAX_BATCH][PAYLOAD_BYTES], in[MAX_BATCH][PAYLOAD_BYTES];
	struct iovec outv[MAX_BATCH], inv[MAX_BATCH];
	struct mmsghdr outm[MAX_BATCH], inm[MAX_BATCH];
	unsigned nlast;
};

static struct sockaddr_in address(int which)
{
	struct sockaddr_in a = { .sin_family = AF_INET,
				 .sin_port = htons((uint16_t)(PORT_BASE + which)) };
	inet_pton(AF_INET, end_ip[which], &a.sin_addr);
	return a;
}

static struct port *open_port(int which, const struct command *c, int sends_only)
{
	struct port *p = calloc(1, sizeof *p);
	struct sockaddr_in here = address(which), there = address(!which);
	int buffer = 16 << 20;

	(void)c, (void)sends_only;
	find_end(&p->end, which);
	p->fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	setsockopt(p->fd, SOL_SOCKET, SO_RCVBUFFORCE, &buffer, sizeof buffer);
	setsockopt(p->fd, SOL_SOCKET, SO_SNDBUFFORCE, &buffer, sizeof buffer);
	if (p->fd < 0 || bind(p->fd, (struct sockaddr *)&here, sizeof here) != 0 ||
	    connect(p->fd, (struct sockaddr *)&there, sizeof there) != 0)
		die("UDP socket");
	for (int i = 0; i < MAX_BATCH; i++) {
		p->outv[i] = (struct iovec){ p->out[i], PAYLOAD_BYTES };
		p->inv[i] = (struct iovec){ p->in[i], PAYLOAD_BYTES };
		p->outm[i].msg_hdr.msg_iov = &p->outv[i];
		p->inm[i].msg_hdr.msg_iov = &p->inv[i];
		p->outm[i].msg_hdr.msg_iovlen = p->inm[i].msg_hdr.msg_iovlen = 1;
	}
	return p;
}

static unsigned put(struct port *p, uint64_t s, unsigned n)
{
	for (unsigned i = 0; i < n; i++, s++)
		memcpy(p->out[i] + SEQUENCE_OFF - PAYLOAD_OFF, &s, 8);
	send_all(p->fd, p->outm, n);
	return n;
}

static unsigned get(struct port *p, unsigned n, uint64_t *sum)
{
	int k = recvmmsg(p->fd, p->inm, n, MSG_DONTWAIT, NULL);

	if (k < 0 && errno != EAGAIN)
		die("recvmmsg");
	p->nlast = k > 0 ? (unsigned)k : 0;
	for (unsigned i = 0; i < p->nlast; i++) {
		uint64_t s;
		memcpy(&s, p->in[i] + SEQUENCE_OFF - PAYLOAD_OFF, 8);
		*sum += s;
	}
	return p->nlast;
}

static void back(struct port *p)
{
	for (unsigned i = 0; i < p->nlast; i++)
		memcpy(p->out[i], p->in[i], PAYLOAD_BYTES);
	send_all(p->fd, p->outm, p->nlast);
}

static void settle_tx(struct port *p) { (void)p; }

static void await(struct port *p) { readable(p->fd); }
