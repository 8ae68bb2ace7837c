/*
 * What the rivals that move packets share: the two ends of a veth pair and the loops over them. A
 * rival defines BENCH_SETUP, includes bench.h and this, and defines the functions at the end, which move batches. The
 * loops are those of cmd/shmctl/internal/bench/xdploops_linux.go.
 *
 * Descriptors 8 and 9 are the network namespaces of the ends A and B. Role 0 works at A and, where
 * one process does it all, at B too; role 1 works at B.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <linux/if_ether.h>

#define NETNS_FD 8
#define FRAME_BYTES 64
#define PAYLOAD_OFF 42 /* Ethernet, IPv4, UDP */
#define SEQUENCE_OFF 48 /* within the frame, aligned */
#define PAYLOAD_BYTES (FRAME_BYTES - PAYLOAD_OFF)
#define RING_ENTRIES 1024
#define DRAIN_BLOCK 1024 /* packets that are queued before they are read */
#define PORT_BASE 7000   /* the UDP port of end 0, that of end 1 follows */
#define PATIENCE_NS 5000000000u
#define MAX_BATCH 64

static const char *const end_name[2] = { "shmring0", "shmring1" };
static const char *const end_ip[2] = { "192.0.2.1", "192.0.2.2" };

/* An end of the pair: what every kind of socket needs to know. */
struct end {
	int which; /* 0 or 1 */
	int ifindex;
	unsigned char mac[6];
	unsigned char frame[FRAME_BYTES]; /* what it sends */
};

static void die(const char *what)
{
	fprintf(stderr, "rival: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void readable(int fd)
{
	struct pollfd f = { .fd = fd, .events = POLLIN };
	if (poll(&f, 1, 5000) <= 0)
		die("poll");
}

static void send_all(int fd, struct mmsghdr *m, unsigned n)
{
	for (unsigned at = 0; at < n;) {
		int k = sendmmsg(fd, m + at, n - at, 0);
		if (k < 0 && errno != EAGAIN && errno != ENOBUFS)
			die("sendmmsg");
		at += k > 0 ? (unsigned)k : 0;
	}
}

static int enter(int which)
{
	if (setns(NETNS_FD + which, 0) != 0)
		die("setns");
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		die("socket");
	return fd;
}

static void mac_of(int which, unsigned char mac[6], int *ifindex)
{
	struct ifreq r;
	int fd = enter(which);

	memset(&r, 0, sizeof r);
	strcpy(r.ifr_name, end_name[which]);
	if (ioctl(fd, SIOCGIFHWADDR, &r) != 0)
		die("SIOCGIFHWADDR");
	memcpy(mac, r.ifr_hwaddr.sa_data, 6);
	if (ioctl(fd, SIOCGIFINDEX, &r) != 0)
		die("SIOCGIFINDEX");
	*ifindex = r.ifr_ifindex;
	close(fd);
}

static void put16(unsigned char *p, unsigned v)
{
	p[0] = (unsigned char)(v >> 8);
	p[1] = (unsigned char)v;
}

/* Looks an end up and stays in its namespace. */
static void find_end(struct end *e, int which)
{
	unsigned char *f = e->frame;
	int ignored;

	e->which = which;
	mac_of(!which, f, &ignored);
	mac_of(which, e->mac, &e->ifindex);
	memcpy(f + 6, e->mac, 6);
	put16(f + 12, ETH_P_IP);
	f[14] = 0x45;
	put16(f + 16, FRAME_BYTES - 14);
	put16(f + 20, 0x4000);
	f[22] = 64;
	f[23] = 17;
	inet_pton(AF_INET, end_ip[which], f + 26);
	inet_pton(AF_INET, end_ip[!which], f + 30);
	unsigned sum = 0;
	for (int i = 14; i < 34; i += 2)
		sum += (unsigned)f[i] << 8 | f[i + 1];
	sum = (sum & 0xffff) + (sum >> 16);
	put16(f + 24, ~(sum + (sum >> 16)) & 0xffff);
	put16(f + 34, (unsigned)(PORT_BASE + which));
	put16(f + 36, (unsigned)(PORT_BASE + !which));
	put16(f + 38, FRAME_BYTES - 34);
}

/*
 * What a rival implements for an end. put sends n packets with sequence numbers from s on and
 * returns how many it took; get takes up to n and adds their numbers up; back sends the packets of
 * the last get to where they came from, all of them; settle_tx waits until all is sent; await
 * blocks until there may be a packet.
 */
struct port;
static struct port *open_port(int which, const struct command *c, int sends_only);
static unsigned put(struct port *p, uint64_t s, unsigned n);
static unsigned get(struct port *p, unsigned n, uint64_t *sum);
static void back(struct port *p);
static void settle_tx(struct port *p);
static void await(struct port *p);

static struct port *mine, *other;

static void open_ports(const struct command *c)
{
	int drop = strncmp(c->name, "drop", 4) == 0, drain = strncmp(c->name, "drain", 5) == 0;

	if (mine != NULL || ((drop || drain) && role == 1))
		return;
	mine = open_port(role, c, drop || drain);
	if (drain)
		other = open_port(1, c, 0);
}

/* Gives up when nothing has arrived for long: a packet was lost. */
static void lost(uint64_t *since)
{
	uint64_t now = now_ns();
	if (*since == 0)
		*since = now;
	else if (now - *since > PATIENCE_NS) {
		fprintf(stderr, "rival: no packet for long: one was lost\n");
		exit(1);
	}
}

static void put_all(struct port *p, uint64_t s, uint64_t n, unsigned batch)
{
	while (n > 0) {
		unsigned k = put(p, s, (unsigned)(n < batch ? n : batch));
		s += k;
		n -= k;
	}
}

/* Sends to a peer that drops. */
static uint64_t drop(uint64_t count, unsigned batch)
{
	uint64_t began = now_ns();
	put_all(mine, 0, count, batch);
	settle_tx(mine);
	return now_ns() - began;
}

/* Queues n packets from number s on, and times the reads of them. */
static uint64_t drain_block(uint64_t s, uint64_t n, unsigned batch, uint64_t *sum)
{
	uint64_t since = 0;

	put_all(mine, s, n, MAX_BATCH);
	settle_tx(mine);
	uint64_t began = now_ns();
	for (uint64_t got = 0; got < n;) {
		unsigned k = get(other, batch, sum);
		got += k;
		if (k == 0)
			lost(&since);
	}
	return now_ns() - began;
}

/* Times the reads of packets that were queued before; steady: once a block of them has been read. */
static uint64_t drain(uint64_t count, unsigned batch, int steady, uint64_t *sum)
{
	uint64_t took = 0, ignored = 0;

	if (steady)
		drain_block(0, DRAIN_BLOCK, batch, &ignored);
	for (uint64_t s = 0; s < count; s += DRAIN_BLOCK)
		took += drain_block(s, count - s < DRAIN_BLOCK ? count - s : DRAIN_BLOCK, batch, sum);
	return took;
}

/* Keeps up to window packets under way, which role 1 sends back. */
static uint64_t echo(const struct command *c, unsigned window, int block, uint64_t *sum)
{
	uint64_t began = now_ns(), sent = 0, got = 0, since = 0, empty = 0;
	unsigned batch = (unsigned)c->batch;

	while (got < c->count) {
		if (role == 0 && sent < c->count && sent - got + batch <= window) {
			uint64_t n = c->count - sent < batch ? c->count - sent : batch;
			put_all(mine, sent, n, batch);
			sent += n;
		}
		unsigned k = get(mine, batch, sum);
		got += k;
		if (k > 0) {
			since = 0;
			if (role == 1)
				back(mine);
		} else if (block) {
			await(mine);
		} else {
			for (uint64_t p = 0; p < c->pauses; p++)
				relax();
			if (++empty % 4096 == 0)
				lost(&since);
		}
	}
	settle_tx(mine);
	return now_ns() - began;
}

static struct answer run(const struct command *c)
{
	struct answer a = { 0, 0 };
	uint64_t sum = 0, want = c->count % 2 ? c->count * ((c->count - 1) / 2)
					      : c->count / 2 * (c->count - 1);
	unsigned batch = (unsigned)c->batch;

	if (batch == 0 || batch > MAX_BATCH) {
		fprintf(stderr, "rival: batch %u, possible are 1 to %d\n", batch, MAX_BATCH);
		exit(1);
	}
	int dropped = strncmp(c->name, "drop", 4) == 0;

	if (dropped || strncmp(c->name, "drain", 5) == 0) {
		if (role == 1) {
			while (atomic_load(at(WORD_0)) == 0)
				usleep(100); /* leaves its processor, which may share a core */
			return a;
		}
		a.ns = dropped ? drop(c->count, batch)
			       : drain(c->count, batch, strncmp(c->name, "drain-steady", 12) == 0, &sum);
		atomic_store(at(WORD_0), 1);
		if (dropped)
			sum = want;
	} else if (strncmp(c->name, "echo", 4) == 0) {
		a.ns = echo(c, 2 * batch, 0, &sum);
	} else {
		a.ns = echo(c, 1, strncmp(c->name, "trip-block", 10) == 0, &sum);
	}
	if (sum != want) {
		fprintf(stderr, "rival: %s: sequence numbers of %lu packets add up to %lu, not %lu\n",
			c->name, c->count, sum, want);
		exit(1);
	}
	if (role == 1)
		a.ns = 0;
	return a;
}

static void setup(const struct command *c) { open_ports(c); }

static void prepare(const struct command *c)
{
	(void)c;
	atomic_store(at(WORD_0), 0);
}
