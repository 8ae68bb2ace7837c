/*
 * The same calls in libfabric's shm provider, set up as fast as its manual allows: one thread that
 * says so (FI_THREAD_DOMAIN), resource management off, no wait objects, injects without completions,
 * receives posted well ahead. Commands:
 *
 *   read-bare, read-empty  fi_cq_read of an empty queue, without and with an endpoint bound to it
 *   read                   fi_cq_read of queued completions, BATCH at a time; only that is timed
 *   eq                     fi_eq_write and fi_eq_read of an entry
 *   cntr-add, cntr-read    fi_cntr_add and fi_cntr_read
 *   rate                   fi_tinject of 8 bytes by role 0, fi_cq_read of up to BATCH by role 1
 *   trip                   the same there and back, BATCH each way
 *
 *   trip-4k                fi_tsend of 4 KiB, there and back, with completions
 *   send-1m                fi_tsend of 1 MiB by role 0, AHEAD at a time, until the last completes
 *
 * All but the last four are the work of role 0; role 1 sleeps meanwhile.
 */
#include "bench.h"
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>

#define BLOCK 512 /* completions that are queued at once, or receives that are posted ahead */
#define NAME_BYTES 256
#define TAG 7
#define LONG_TAG 8
#define LONG_BYTES 1048576 /* at most */
#define AHEAD 4 /* long messages under way, or receives of them */

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_av *av;
static struct fid_cq *cq, *bare;
static struct fid_cntr *cntr;
static struct fid_eq *eq;
static struct fid_ep *ep;
static fi_addr_t self, peer;
static uint64_t out = 1, in[BLOCK], sum;
static struct fi_cq_tagged_entry entries[BLOCK];
static unsigned char *payload, *memory[AHEAD];
static uint64_t sent, ended, arrived; /* of long messages */

static void need(const char *what, long got)
{
	if (got < 0) {
		fprintf(stderr, "%s: %s\n", what, fi_strerror((int)-got));
		exit(1);
	}
}

/* The provider has a file in /dev/shm for each endpoint, which goes only if it is closed. */
static void finish(void)
{
	struct fid *fids[] = { &ep->fid, &cq->fid, &bare->fid, &cntr->fid, &av->fid, &domain->fid,
			       &eq->fid, &fabric->fid };

	for (size_t i = 0; i < sizeof fids / sizeof *fids; i++)
		fi_close(fids[i]);
	fi_freeinfo(info);
}

static void open_all(void)
{
	struct fi_info *hints = fi_allocinfo();
	struct fi_cq_attr cq_attr = { .size = 2 * BLOCK, .format = FI_CQ_FORMAT_TAGGED,
				      .wait_obj = FI_WAIT_NONE };
	struct fi_av_attr av_attr = { .type = FI_AV_TABLE };
	struct fi_cntr_attr cntr_attr = { .events = FI_CNTR_EVENTS_COMP, .wait_obj = FI_WAIT_NONE };
	struct fi_eq_attr eq_attr = { .size = 64, .flags = FI_WRITE, .wait_obj = FI_WAIT_NONE };

	hints->caps = FI_TAGGED;
	hints->ep_attr->type = FI_EP_RDM;
	hints->fabric_attr->prov_name = strdup("shm");
	hints->domain_attr->threading = FI_THREAD_DOMAIN;
	hints->domain_attr->resource_mgmt = FI_RM_DISABLED;
	hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_HMEM;
	need("fi_getinfo", fi_getinfo(FI_VERSION(1, 14), NULL, NULL, 0, hints, &info));
	fi_freeinfo(hints);
	info->domain_attr->threading = FI_THREAD_DOMAIN;
	info->domain_attr->resource_mgmt = FI_RM_DISABLED;
	need("fi_fabric", fi_fabric(info->fabric_attr, &fabric, NULL));
	need("fi_domain", fi_domain(fabric, info, &domain, NULL));
	need("fi_eq_open", fi_eq_open(fabric, &eq_attr, &eq, NULL));
	need("fi_cq_open", fi_cq_open(domain, &cq_attr, &cq, NULL));
	need("fi_cq_open", fi_cq_open(domain, &cq_attr, &bare, NULL));
	need("fi_cntr_open", fi_cntr_open(domain, &cntr_attr, &cntr, NULL));
	need("fi_av_open", fi_av_open(domain, &av_attr, &av, NULL));
	need("fi_endpoint", fi_endpoint(domain, info, &ep, NULL));
	need("fi_ep_bind", fi_ep_bind(ep, &av->fid, 0));
	need("fi_ep_bind", fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	need("fi_enable", fi_enable(ep));
	atexit(finish);
}

/* Each writes its address into the area and says so, then reads the other's. */
static void meet(void)
{
	unsigned char *mine = area + (role ? RING_1 : RING_0), *other = area + (role ? RING_0 : RING_1);
	word64 *here = at(role ? WORD_1 : WORD_0), *there = at(role ? WORD_0 : WORD_1);
	size_t len = NAME_BYTES;

	need("fi_getname", fi_getname(&ep->fid, mine, &len));
	if (fi_av_insert(av, mine, 1, &self, 0, NULL) != 1)
		need("fi_av_insert", -FI_EADDRNOTAVAIL);
	atomic_store(here, 1);
	while (atomic_load(there) < 1)
		relax();
	if (fi_av_insert(av, other, 1, &peer, 0, NULL) != 1)
		need("fi_av_insert", -FI_EADDRNOTAVAIL);
	atomic_store(here, 2);
	while (atomic_load(there) < 2) /* it may be further already */
		relax();
}

static void post_receives(uint64_t n)
{
	for (uint64_t i = 0; i < n; i++)
		need("fi_trecv", fi_trecv(ep, &in[i % BLOCK], sizeof *in, NULL, FI_ADDR_UNSPEC, TAG, 0, NULL));
}

static void inject(fi_addr_t to, uint64_t n)
{
	for (uint64_t i = 0; i < n; i++) {
		ssize_t got;
		while ((got = fi_tinject(ep, &out, sizeof out, to, TAG)) == -FI_EAGAIN)
			(void)fi_cq_read(cq, NULL, 0);
		need("fi_tinject", got);
	}
}

/* At least one and up to n completions of receives, which are posted again. */
static uint64_t await(uint64_t n, uint64_t pauses)
{
	ssize_t got;

	while ((got = fi_cq_read(cq, entries, n)) == -FI_EAGAIN)
		for (uint64_t i = 0; i < pauses; i++)
			relax();
	need("fi_cq_read", got);
	post_receives((uint64_t)got);
	return (uint64_t)got;
}

static uint64_t empty(struct fid_cq *q, uint64_t count)
{
	uint64_t began = now_ns();

	for (uint64_t i = 0; i < count; i++)
		if (fi_cq_read(q, entries, 1) != -FI_EAGAIN)
			need("fi_cq_read of an empty queue", -FI_EOTHER);
	return now_ns() - began;
}

/* Injects to oneself are turned into queued completions first: a read of none does just that. */
static uint64_t full(uint64_t batch, uint64_t count)
{
	uint64_t took = 0;

	for (uint64_t left = count; left > 0;) {
		uint64_t block = left < BLOCK ? left : BLOCK;
		inject(self, block);
		(void)fi_cq_read(cq, NULL, 0);
		uint64_t began = now_ns();
		for (uint64_t seen = 0; seen < block;) {
			ssize_t got = fi_cq_read(cq, entries, block - seen < batch ? block - seen : batch);
			need("fi_cq_read", got);
			sum += entries[0].len;
			seen += (uint64_t)got;
		}
		took += now_ns() - began;
		post_receives(block);
		left -= block;
	}
	return took;
}

static uint64_t events(uint64_t count)
{
	struct fi_eq_entry e = { .fid = &ep->fid, .context = &out, .data = 1 };
	uint32_t event = 0;
	uint64_t began = now_ns();

	for (uint64_t i = 0; i < count; i++) {
		need("fi_eq_write", fi_eq_write(eq, FI_NOTIFY, &e, sizeof e, 0));
		need("fi_eq_read", fi_eq_read(eq, &event, &e, sizeof e, 0));
	}
	return now_ns() - began;
}

static uint64_t counter_add(uint64_t count)
{
	uint64_t began = now_ns();

	for (uint64_t i = 0; i < count; i++)
		need("fi_cntr_add", fi_cntr_add(cntr, 1));
	return now_ns() - began;
}

static uint64_t counter_read(uint64_t count)
{
	uint64_t began = now_ns();

	for (uint64_t i = 0; i < count; i++)
		sum += fi_cntr_read(cntr);
	return now_ns() - began;
}

static uint64_t trip(uint64_t batch, uint64_t count, uint64_t pauses)
{
	uint64_t began = now_ns();

	for (uint64_t i = 0; i < count; i++) {
		if (role == 0)
			inject(peer, batch);
		for (uint64_t got = 0; got < batch;)
			got += await(batch - got, pauses);
		if (role == 1)
			inject(peer, batch);
	}
	return now_ns() - began;
}

static uint64_t rate(uint64_t batch, uint64_t count, uint64_t pauses)
{
	uint64_t began = now_ns();

	if (role == 0) {
		inject(peer, count);
		return 0;
	}
	for (uint64_t got = 0; got < count;)
		got += await(count - got < batch ? count - got : batch, pauses);
	return now_ns() - began;
}

static void post_long(void *buf)
{
	need("fi_trecv", fi_trecv(ep, buf, LONG_BYTES, NULL, FI_ADDR_UNSPEC, LONG_TAG, 0, buf));
}

/* Sends a long message, unless AHEAD are under way, and takes what has completed. */
static void step(int sends, size_t len, uint64_t pauses)
{
	ssize_t got;

	if (sends && sent - ended < AHEAD) {
		got = fi_tsend(ep, payload, len, NULL, peer, LONG_TAG, payload);
		if (got == 0)
			sent++;
		else if (got != -FI_EAGAIN)
			need("fi_tsend", got);
	}
	got = fi_cq_read(cq, entries, BLOCK);
	if (got == -FI_EAGAIN) {
		for (uint64_t i = 0; i < pauses; i++)
			relax();
		return;
	}
	need("fi_cq_read", got);
	for (ssize_t i = 0; i < got; i++) {
		if (entries[i].flags & FI_SEND) {
			ended++;
			continue;
		}
		arrived++;
		post_long(entries[i].op_context);
	}
}

static uint64_t long_messages(int back, size_t len, uint64_t count, uint64_t pauses)
{
	uint64_t s = sent, a = arrived;

	if (!payload) {
		/* Memory that nobody wrote to is one page of zeros, in the nearest cache. */
		payload = malloc(LONG_BYTES);
		memset(payload, 1, LONG_BYTES);
		for (int i = 0; i < AHEAD; i++) {
			memory[i] = calloc(1, LONG_BYTES);
			post_long(memory[i]);
		}
	}
	uint64_t began = now_ns();
	if (back)
		while (arrived - a < count || sent - s < count || ended < sent)
			step(role ? arrived - a > sent - s
				  : arrived - a == sent - s && arrived - a < count,
			     len, pauses);
	else if (role == 0)
		while (sent - s < count || ended < sent)
			step(sent - s < count, len, pauses);
	else
		while (arrived - a < count)
			step(0, len, pauses);
	return now_ns() - began;
}

static void prepare(const struct command *c)
{
	(void)c;
	atomic_store(at(WORD_0), 0);
	atomic_store(at(WORD_1), 0);
}

static struct answer run(const struct command *c)
{
	struct answer a = { 0, 0 };
	int back = strcmp(c->name, "trip-4k") == 0, send = strcmp(c->name, "send-1m") == 0;
	int both = back || send || strcmp(c->name, "rate") == 0 || strcmp(c->name, "trip") == 0;

	if (!ep) {
		open_all();
		meet();
		if (!back && !send) /* each long message would be compared with all of them */
			post_receives(BLOCK);
	}
	if (!both && role == 1) {
		while (atomic_load(at(WORD_0)) != 3)
			usleep(100);
		return a;
	}
	if (strcmp(c->name, "read-bare") == 0)
		a.ns = empty(bare, c->count);
	else if (strcmp(c->name, "read-empty") == 0)
		a.ns = empty(cq, c->count);
	else if (strcmp(c->name, "read") == 0)
		a.ns = full(c->batch, c->count);
	else if (strcmp(c->name, "eq") == 0)
		a.ns = events(c->count);
	else if (strcmp(c->name, "cntr-add") == 0)
		a.ns = counter_add(c->count);
	else if (strcmp(c->name, "cntr-read") == 0)
		a.ns = counter_read(c->count);
	else if (strcmp(c->name, "rate") == 0)
		a.ns = rate(c->batch, c->count, c->pauses);
	else if (strcmp(c->name, "trip") == 0)
		a.ns = role == 0 ? trip(c->batch, c->count, c->pauses) : (trip(c->batch, c->count, c->pauses), 0);
	else if (back || send)
		a.ns = long_messages(back, back ? 4 << 10 : 1 << 20, c->count, c->pauses);
	else
		need(c->name, -FI_EINVAL);
	if (role == 1 && strcmp(c->name, "rate") != 0)
		a.ns = 0;
	if (!both)
		atomic_store(at(WORD_0), 3);
	return a;
}
