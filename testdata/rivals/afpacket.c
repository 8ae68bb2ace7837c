/*
 * AF_PACKET: receives through a mapped ring (TPACKET_V2, whose frames are visible one by one; V3
 * hands out blocks, which adds latency), sends by sendmmsg past the queueing discipline.
 * The packets are of an ethertype that the kernel's stack does not know, or it would answer them.
 */
#define BENCH_SETUP
#include "bench.h"
#include "packets.h"
#include <linux/if_packet.h>

#define ETHERTYPE 0x88b5 /* for experiments */
#define SLOT 256u
#define SLOTS (2 * RING_ENTRIES)

struct port {
	struct end end;
	int fd;
	unsigned char *ring;
	unsigned at, nlast;
	unsigned char out[MAX_BATCH][FRAME_BYTES];
	struct iovec outv[MAX_BATCH];
	struct mmsghdr outm[MAX_BATCH];
};

static struct port *open_port(int which, const struct command *c, int sends_only)
{
	struct port *p = calloc(1, sizeof *p);
	struct sockaddr_ll sa = { .sll_family = AF_PACKET, .sll_protocol = htons(ETHERTYPE) };
	struct tpacket_req req = { .tp_block_size = 65536, .tp_frame_size = SLOT,
				   .tp_block_nr = SLOTS * SLOT / 65536, .tp_frame_nr = SLOTS };
	int version = TPACKET_V2, one = 1, buffer = 16 << 20;

	(void)c;
	find_end(&p->end, which);
	put16(p->end.frame + 12, ETHERTYPE);
	p->fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0);
	if (p->fd < 0 || setsockopt(p->fd, SOL_PACKET, PACKET_VERSION, &version, sizeof version) != 0)
		die("AF_PACKET socket");
	setsockopt(p->fd, SOL_PACKET, PACKET_QDISC_BYPASS, &one, sizeof one);
	setsockopt(p->fd, SOL_SOCKET, SO_SNDBUFFORCE, &buffer, sizeof buffer);
	if (!sends_only || which == 1) {
		if (setsockopt(p->fd, SOL_PACKET, PACKET_RX_RING, &req, sizeof req) != 0)
			die("PACKET_RX_RING");
		p->ring = mmap(NULL, SLOTS * SLOT, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
			       p->fd, 0);
		if (p->ring == MAP_FAILED)
			die("map the ring");
	}
	sa.sll_ifindex = p->end.ifindex;
	if (bind(p->fd, (struct sockaddr *)&sa, sizeof sa) != 0)
		die("bind");
	for (int i = 0; i < MAX_BATCH; i++) {
		memcpy(p->out[i], p->end.frame, FRAME_BYTES);
		p->outv[i] = (struct iovec){ p->out[i], FRAME_BYTES };
		p->outm[i].msg_hdr.msg_iov = &p->outv[i];
		p->outm[i].msg_hdr.msg_iovlen = 1;
	}
	return p;
}

static unsigned put(struct port *p, uint64_t s, unsigned n)
{
	for (unsigned i = 0; i < n; i++, s++)
		memcpy(p->out[i] + SEQUENCE_OFF, &s, 8);
	send_all(p->fd, p->outm, n);
	return n;
}

static unsigned get(struct port *p, unsigned n, uint64_t *sum)
{
	unsigned k = 0;

	for (; k < n; k++) {
		struct tpacket2_hdr *h = (struct tpacket2_hdr *)(p->ring + (size_t)p->at * SLOT);
		_Atomic uint32_t *status = (_Atomic uint32_t *)&h->tp_status;
		uint64_t s;
		if (!(atomic_load_explicit(status, memory_order_acquire) & TP_STATUS_USER))
			break;
		unsigned char *f = (unsigned char *)h + h->tp_mac;
		memcpy(&s, f + SEQUENCE_OFF, 8);
		*sum += s;
		if (role == 1)
			memcpy(p->out[k] + PAYLOAD_OFF, f + PAYLOAD_OFF, PAYLOAD_BYTES);
		atomic_store_explicit(status, TP_STATUS_KERNEL, memory_order_release);
		p->at = (p->at + 1) % SLOTS;
	}
	p->nlast = k;
	return k;
}

static void back(struct port *p) { send_all(p->fd, p->outm, p->nlast); }

static void settle_tx(struct port *p) { (void)p; }

static void await(struct port *p) { readable(p->fd); }
