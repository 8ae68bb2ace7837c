/*
 * AF_XDP on the bare kernel interface: two rings of 1024 descriptors each way over 2048 chunks of
 * 2048 bytes, need_wakeup, one index store a batch, frames sent back in place. The program is the
 * one that libxdp brings: it redirects every packet of a queue to its socket.
 */
#define BENCH_SETUP
#include "bench.h"
#include "packets.h"
#include <linux/bpf.h>
#include <linux/if_link.h>
#include <linux/if_xdp.h>

#ifndef XDP_MAX_TX_SKB_BUDGET
#define XDP_MAX_TX_SKB_BUDGET 9
#endif

#define CHUNK 2048u
#define CHUNKS 2048u
#define SEND_CHUNKS 512u
#define HEADROOM 320u /* as the other side leaves in front of what it sends */
#define RX 0
#define TX 1
#define FILL 2
#define COMP 3

struct ring {
	_Atomic uint32_t *prod, *cons, *flags;
	void *slots;
	uint32_t mine, theirs; /* our index, and the kernel's as last loaded */
};

struct port {
	struct end end;
	int fd, link;
	unsigned char *mem;
	struct ring ring[4];
	uint64_t free[CHUNKS]; /* chunks to send from */
	unsigned nfree;
	struct xdp_desc last[MAX_BATCH]; /* of the last get, for back */
	unsigned nlast;
	int echoes;
};

static int bpf(int command, union bpf_attr *attr)
{
	return (int)syscall(SYS_bpf, command, attr, sizeof *attr);
}

/* Loads the program and attaches it by a link, which ends with the process. */
static void redirect(struct port *p, uint32_t mode)
{
	union bpf_attr a;
	uint32_t zero = 0, fd = (uint32_t)p->fd;

	memset(&a, 0, sizeof a);
	a.map_type = BPF_MAP_TYPE_XSKMAP;
	a.key_size = a.value_size = 4;
	a.max_entries = 1;
	int map = bpf(BPF_MAP_CREATE, &a);
	if (map < 0)
		die("make the map of sockets");
	struct bpf_insn code[] = {
		{ .code = BPF_LDX | BPF_W | BPF_MEM, .dst_reg = 2, .src_reg = 1, .off = 16 },
		{ .code = BPF_LD | BPF_DW | BPF_IMM, .dst_reg = 1, .src_reg = BPF_PSEUDO_MAP_FD,
		  .imm = map },
		{ 0 },
		{ .code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 3, .imm = XDP_PASS },
		{ .code = BPF_JMP | BPF_CALL, .imm = BPF_FUNC_redirect_map },
		{ .code = BPF_JMP | BPF_EXIT },
	};
	memset(&a, 0, sizeof a);
	a.prog_type = BPF_PROG_TYPE_XDP;
	a.insns = (uintptr_t)code;
	a.insn_cnt = sizeof code / sizeof code[0];
	a.license = (uintptr_t) "GPL";
	int prog = bpf(BPF_PROG_LOAD, &a);
	if (prog < 0)
		die("load the program");
	memset(&a, 0, sizeof a);
	a.map_fd = (uint32_t)map;
	a.key = (uintptr_t)&zero;
	a.value = (uintptr_t)&fd;
	if (bpf(BPF_MAP_UPDATE_ELEM, &a) != 0)
		die("put the socket into the map");
	memset(&a, 0, sizeof a);
	a.link_create.prog_fd = (uint32_t)prog;
	a.link_create.target_ifindex = (uint32_t)p->end.ifindex;
	a.link_create.attach_type = BPF_XDP;
	a.link_create.flags = mode;
	p->link = bpf(BPF_LINK_CREATE, &a);
	if (p->link < 0)
		die("attach the program");
}

static void map_ring(struct port *p, int which, int option, uint64_t pgoff,
		     const struct xdp_ring_offset *off)
{
	struct ring *r = &p->ring[which];
	size_t entry = which >= FILL ? 8 : sizeof(struct xdp_desc);

	(void)option;
	unsigned char *m = mmap(NULL, off->desc + RING_ENTRIES * entry, PROT_READ | PROT_WRITE,
				MAP_SHARED | MAP_POPULATE, p->fd, (off_t)pgoff);
	if (m == MAP_FAILED)
		die("map a ring");
	r->prod = (_Atomic uint32_t *)(m + off->producer);
	r->cons = (_Atomic uint32_t *)(m + off->consumer);
	r->flags = (_Atomic uint32_t *)(m + off->flags);
	r->slots = m + off->desc;
}

static void make_rings(struct port *p)
{
	static const int options[4] = { XDP_RX_RING, XDP_TX_RING, XDP_UMEM_FILL_RING,
					XDP_UMEM_COMPLETION_RING };
	int entries = RING_ENTRIES;
	struct xdp_mmap_offsets off;
	socklen_t len = sizeof off;

	for (int i = 0; i < 4; i++)
		if (setsockopt(p->fd, SOL_XDP, options[i], &entries, sizeof entries) != 0)
			die("size a ring");
	if (getsockopt(p->fd, SOL_XDP, XDP_MMAP_OFFSETS, &off, &len) != 0 || len != sizeof off)
		die("XDP_MMAP_OFFSETS");
	map_ring(p, RX, XDP_RX_RING, XDP_PGOFF_RX_RING, &off.rx);
	map_ring(p, TX, XDP_TX_RING, XDP_PGOFF_TX_RING, &off.tx);
	map_ring(p, FILL, XDP_UMEM_FILL_RING, XDP_UMEM_PGOFF_FILL_RING, &off.fr);
	map_ring(p, COMP, XDP_UMEM_COMPLETION_RING, XDP_UMEM_PGOFF_COMPLETION_RING, &off.cr);
	int buffer = 4 << 20;
	setsockopt(p->fd, SOL_SOCKET, SO_SNDBUFFORCE, &buffer, sizeof buffer);
	setsockopt(p->fd, SOL_XDP, XDP_MAX_TX_SKB_BUDGET, &entries, sizeof entries);
}

static inline void fill(struct port *p, uint64_t addr)
{
	struct ring *f = &p->ring[FILL];
	((uint64_t *)f->slots)[f->mine++ & (RING_ENTRIES - 1)] = addr;
}

static inline void publish(struct ring *r)
{
	atomic_store_explicit(r->prod, r->mine, memory_order_release);
}

static struct port *open_port(int which, const struct command *c, int sends_only)
{
	struct port *p = calloc(1, sizeof *p);
	struct sockaddr_xdp sa = { .sxdp_family = AF_XDP, .sxdp_flags = XDP_COPY | XDP_USE_NEED_WAKEUP };
	struct xdp_umem_reg reg;

	find_end(&p->end, which);
	p->fd = socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0);
	p->mem = mmap(NULL, (size_t)CHUNKS * CHUNK, PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (p->fd < 0 || p->mem == MAP_FAILED)
		die("AF_XDP socket");
	memset(&reg, 0, sizeof reg);
	reg.addr = (uintptr_t)p->mem;
	reg.len = (uint64_t)CHUNKS * CHUNK;
	reg.chunk_size = CHUNK;
	if (setsockopt(p->fd, SOL_XDP, XDP_UMEM_REG, &reg, sizeof reg) != 0)
		die("XDP_UMEM_REG");
	make_rings(p);
	for (unsigned i = 0; i < SEND_CHUNKS; i++)
		p->free[p->nfree++] = (uint64_t)(CHUNKS - 1 - i) * CHUNK + HEADROOM;
	for (unsigned i = 0; i < RING_ENTRIES; i++)
		fill(p, (uint64_t)i * CHUNK);
	publish(&p->ring[FILL]);
	sa.sxdp_ifindex = (uint32_t)p->end.ifindex;
	for (int i = 0; bind(p->fd, (struct sockaddr *)&sa, sizeof sa) != 0; i++) {
		if (errno != EBUSY || i == 500)
			die("bind");
		usleep(2000); /* a socket that was closed just now holds the queue */
	}
	p->echoes = !sends_only;
	if (!sends_only || which == 1)
		redirect(p, strstr(c->name, "+generic") ? XDP_FLAGS_SKB_MODE : XDP_FLAGS_DRV_MODE);
	return p;
}

/* Takes back what was sent. A chunk that was received goes to the fill ring again. */
static void reap(struct port *p)
{
	struct ring *r = &p->ring[COMP];
	uint32_t prod = atomic_load_explicit(r->prod, memory_order_acquire);
	int filled = 0;

	if (prod == r->mine)
		return;
	while (r->mine != prod) {
		uint64_t addr = ((uint64_t *)r->slots)[r->mine++ & (RING_ENTRIES - 1)];
		if (addr >= (uint64_t)(CHUNKS - SEND_CHUNKS) * CHUNK) {
			p->free[p->nfree++] = addr;
		} else {
			fill(p, addr & ~(uint64_t)(CHUNK - 1));
			filled = 1;
		}
	}
	atomic_store_explicit(r->cons, r->mine, memory_order_release);
	if (filled)
		publish(&p->ring[FILL]);
}

/* Lets the kernel send all that was published. */
static void kick(struct port *p)
{
	struct ring *t = &p->ring[TX];

	if (!(atomic_load_explicit(t->flags, memory_order_relaxed) & XDP_RING_NEED_WAKEUP))
		return;
	do {
		if (sendto(p->fd, NULL, 0, MSG_DONTWAIT, NULL, 0) < 0 && errno != EAGAIN &&
		    errno != EBUSY && errno != ENOBUFS)
			die("sendto");
		reap(p);
	} while (atomic_load_explicit(t->cons, memory_order_acquire) != t->mine);
}

static inline void send_desc(struct port *p, uint64_t addr, uint32_t len)
{
	struct ring *t = &p->ring[TX];
	struct xdp_desc *d = &((struct xdp_desc *)t->slots)[t->mine++ & (RING_ENTRIES - 1)];
	d->addr = addr;
	d->len = len;
	d->options = 0;
}

static unsigned put(struct port *p, uint64_t s, unsigned n)
{
	while (p->nfree < n)
		reap(p);
	for (unsigned i = 0; i < n; i++, s++) {
		uint64_t addr = p->free[--p->nfree];
		memcpy(p->mem + addr, p->end.frame, FRAME_BYTES);
		memcpy(p->mem + addr + SEQUENCE_OFF, &s, 8);
		send_desc(p, addr, FRAME_BYTES);
	}
	publish(&p->ring[TX]);
	kick(p);
	return n;
}

static unsigned get(struct port *p, unsigned n, uint64_t *sum)
{
	struct ring *r = &p->ring[RX];
	uint32_t have = r->theirs - r->mine;

	if (have < n) {
		r->theirs = atomic_load_explicit(r->prod, memory_order_acquire);
		have = r->theirs - r->mine;
		if (have == 0)
			return 0;
		if (have < n)
			n = have;
	}
	for (unsigned i = 0; i < n; i++) {
		struct xdp_desc *d =
			&((struct xdp_desc *)r->slots)[r->mine++ & (RING_ENTRIES - 1)];
		uint64_t s;
		memcpy(&s, p->mem + d->addr + SEQUENCE_OFF, 8);
		*sum += s;
		if (p->echoes && role == 1)
			p->last[i] = *d;
		else
			fill(p, d->addr & ~(uint64_t)(CHUNK - 1));
	}
	p->nlast = n;
	atomic_store_explicit(r->cons, r->mine, memory_order_release);
	if (!(p->echoes && role == 1))
		publish(&p->ring[FILL]);
	return n;
}

static void back(struct port *p)
{
	for (unsigned i = 0; i < p->nlast; i++) {
		unsigned char *f = p->mem + p->last[i].addr;
		memcpy(f, p->end.frame, SEQUENCE_OFF); /* all headers of the way back */
		send_desc(p, p->last[i].addr, p->last[i].len);
	}
	publish(&p->ring[TX]);
	kick(p);
}

static void settle_tx(struct port *p)
{
	struct ring *t = &p->ring[TX], *r = &p->ring[COMP];
	while (t->mine != r->mine)
		kick(p);
}

static void await(struct port *p) { readable(p->fd); }
