// A peer of package fabric in C: an endpoint that sends back what comes, by docs/fabric.md alone.
//
//	peer DIR NAME OTHER [spin]
//
// It makes the endpoint NAME, says "ready", and echoes the messages of OTHER, which is there already:
// those that fit a slot or a chunk, and longer ones, whose header comes alone, or by reference. What
// it cannot send back yet it keeps. It sleeps while nothing comes, or looks all the time. It ends
// when its input does, or says "died" when the process of OTHER has ended. Numbers of sections, kinds and offsets are those of the page.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

typedef _Atomic uint64_t word;
typedef _Atomic uint32_t half;
typedef unsigned char byte;

enum {
	PAGE = 4096, PEERS = 4, SLOTS = 8, INLINE = 192, CHARGE = 64, WINDOW = 1 << 16,
	CHUNK = 32 << 10, CHUNKS = 2 * SLOTS, RECORDS = 8, OPS = 4096, MOST = 1 << 24,
	KIND_FABRIC = 11, KIND_OUTBOX = 12, CLOSED = 1,
	MESSAGE = 1, FIN = 2, HEADER = 4, SEGMENT = 5, TAGGED = 256, DATA = 512, IN_POOL = 1024,
	SECT_PAGE = 0x600, SECT_ROWS, SECT_MAIL, SECT_LANES, SECT_SLOTS, SECT_DONE, SECT_POOL,
};
#define ARM_DIRECT (1ull << 32)
#define ARM_GENERATION (1ull << 48)

struct row { // the receiver's
	word parked, index, pad[14];
	word owner, head, granted, rung, matched, owed, control, rev, record[RECORDS];
};
struct lane { // the sender's
	word parked, index, pad[14];
	word id, slab, slots, target, pays, control, high, low, rest[8];
};
struct slot { word seq, head, tag, data; byte payload[INLINE]; word more[4]; };
_Static_assert(sizeof(struct row) == 256 && sizeof(struct lane) == 256 &&
	sizeof(struct slot) == 256, "layout");

struct object { byte *mem; int fd; };

static void die(const char *what) { perror(what); exit(3); }
#define CHECK(x, what) do { if (!(x)) die(what); } while (0)

// ---- page 0: see package shm ----

static void put32(byte *p, uint32_t v) { memcpy(p, &v, 4); }
static void put64(byte *p, uint64_t v) { memcpy(p, &v, 8); }
static uint32_t get32(const byte *p) { uint32_t v; memcpy(&v, p, 4); return v; }
static uint64_t get64(const byte *p) { uint64_t v; memcpy(&v, p, 8); return v; }

static uint32_t crc32c(const byte *p, size_t n) {
	uint32_t c = ~0u;
	while (n--) {
		c ^= *p++;
		for (int i = 0; i < 8; i++)
			c = c >> 1 ^ (c & 1 ? 0x82f63b78 : 0);
	}
	return ~c;
}

static uint64_t now_ns(clockid_t c) {
	struct timespec t;
	clock_gettime(c, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

struct self { uint64_t pid, ns, start; byte boot[16]; };

static struct self whoami(void) {
	struct self s = {.pid = getpid()};
	struct stat st;
	CHECK(stat("/proc/self/ns/pid", &st) == 0, "pid namespace");
	s.ns = st.st_ino;
	char text[1024] = "";
	FILE *f = fopen("/proc/self/stat", "r");
	CHECK(f && fgets(text, sizeof text, f), "stat");
	fclose(f);
	char *p = strrchr(text, ')');
	for (int field = 2; field < 22 && p; field++)
		p = strchr(p + 1, ' ');
	CHECK(p, "start time");
	s.start = strtoull(p, NULL, 10);
	f = fopen("/proc/sys/kernel/random/boot_id", "r");
	CHECK(f && fgets(text, sizeof text, f), "boot id");
	fclose(f);
	for (int i = 0, n = 0; n < 16 && text[i]; i++) {
		if (text[i] == '-')
			continue;
		sscanf(text + i++, "%2hhx", &s.boot[n++]);
	}
	return s;
}

struct section { uint32_t kind; uint64_t length, elem, count, at; };

// create makes an object: memory, header, lock, and the name at last.
static struct object create(int dir, const char *name, uint32_t kind, const byte uuid[16],
	const char *title, const uint64_t attrs[16], struct section *s, int n, int named) {
	uint64_t total = PAGE;
	for (int i = 0; i < n; i++) {
		s[i].at = total;
		total = (total + s[i].length + PAGE - 1) / PAGE * PAGE;
	}
	struct object o = {.fd = openat(dir, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600)};
	CHECK(o.fd >= 0 && fallocate(o.fd, 0, 0, total) == 0, "memory");
	o.mem = mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_SHARED, o.fd, 0);
	CHECK(o.mem != MAP_FAILED, "mmap");
	byte *p = o.mem;
	struct self me = whoami();
	memcpy(p, "shmring", 8);
	put32(p + 0x08, 0x01020304);
	p[0x0e] = 1; // version 0.1
	put32(p + 0x10, PAGE);
	put32(p + 0x14, kind);
	put64(p + 0x18, total);
	memcpy(p + 0x38, uuid, 16);
	put64(p + 0x48, 1);
	memcpy(p + 0x50, me.boot, 16);
	put64(p + 0x60, me.pid);
	put64(p + 0x68, me.ns);
	put64(p + 0x70, me.start);
	put64(p + 0x78, now_ns(CLOCK_MONOTONIC));
	put64(p + 0x80, now_ns(CLOCK_REALTIME));
	put32(p + 0x88, strlen(title));
	put32(p + 0x8c, n);
	memcpy(p + 0x90, title, strlen(title));
	memcpy(p + 0x100, attrs, 128);
	for (int i = 0; i < n; i++) {
		byte *e = p + 0x180 + 64 * i;
		put32(e, s[i].kind);
		put64(e + 8, s[i].at);
		put64(e + 16, s[i].length);
		put64(e + 24, s[i].elem);
		put64(e + 32, s[i].count);
		put64(e + 40, 1); // layout
		put64(e + 48, PAGE);
	}
	put32(p + 0x980, crc32c(p, 0x980));
	byte *owner = p + 0xb80; // record 1, since the first turn is odd
	put64(owner, me.pid);
	put64(owner + 8, me.ns);
	put64(owner + 16, me.start);
	memcpy(owner + 24, me.boot, 16);
	put64(owner + 40, 1);
	put64(owner + 48, now_ns(CLOCK_MONOTONIC));
	put64(owner + 56, 1);
	put64(p + 0xa80, 1);
	put64(p + 0xa88, 1);
	struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
	CHECK(fcntl(o.fd, F_OFD_SETLK, &l) == 0, "lock");
	put64(p + 0xa00, 1);
	char path[64];
	snprintf(path, sizeof path, "/proc/self/fd/%d", o.fd);
	if (named)
		CHECK(linkat(AT_FDCWD, path, dir, name, AT_SYMLINK_FOLLOW) == 0, "name");
	return o;
}

static void give_name(int dir, struct object o, const char *name) {
	char path[64];
	snprintf(path, sizeof path, "/proc/self/fd/%d", o.fd);
	CHECK(linkat(AT_FDCWD, path, dir, name, AT_SYMLINK_FOLLOW) == 0, "name");
}

// attach maps an object of another process. Its words are that process's, but for what is ours.
static struct object attach(int dir, const char *name, uint32_t kind) {
	struct object o = {.fd = openat(dir, name, O_RDWR | O_CLOEXEC)};
	struct stat st;
	CHECK(o.fd >= 0 && fstat(o.fd, &st) == 0 && st.st_size >= 2 * PAGE, "open peer");
	o.mem = mmap(NULL, st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, o.fd, 0);
	CHECK(o.mem != MAP_FAILED, "mmap peer");
	errno = EBADMSG;
	CHECK(memcmp(o.mem, "shmring", 8) == 0 && get32(o.mem + 0x14) == kind &&
		get64(o.mem + 0x18) == (uint64_t)st.st_size &&
		get32(o.mem + 0x980) == crc32c(o.mem, 0x980), "header of peer");
	return o;
}

static uint64_t attr(struct object o, int i) { return get64(o.mem + 0x100 + 8 * i); }

// range returns n bytes of a section from one on, all of which it has.
static void *range(struct object o, uint32_t kind, uint64_t at, uint64_t n) {
	for (uint32_t i = 0; i < get32(o.mem + 0x8c) && i < 32; i++) {
		byte *e = o.mem + 0x180 + 64 * i;
		if (get32(e) == kind && at <= get64(e + 16) && n <= get64(e + 16) - at)
			return o.mem + get64(e + 8) + at;
	}
	errno = EBADMSG;
	die("section");
	return NULL;
}

static void *section(struct object o, uint32_t kind) { return range(o, kind, 0, 0); }

// ---- an endpoint ----

struct bell { word *arm; half *epoch; word *rung, *ready, *claims; };

struct endpoint {
	struct object o;
	uint64_t rows, window;
	word *state;
	struct row *row;
	struct bell bell;
};

static uint64_t claims_at(uint64_t rows) { return (384 + (2 * rows + 63) / 64 * 8 + 127) / 128 * 128; }

static struct endpoint lay(struct object o) {
	struct endpoint e = {.o = o, .rows = attr(o, 0), .window = attr(o, 1)};
	byte *page = section(o, SECT_PAGE), *mail = section(o, SECT_MAIL);
	e.state = (word *)(page + 128);
	e.row = section(o, SECT_ROWS);
	e.bell = (struct bell){(word *)page, (half *)mail, (word *)(mail + 128), (word *)(mail + 384),
		(word *)(mail + claims_at(e.rows))};
	return e;
}

// ring is P2 to P5 of package doorbell. What was published before is sequentially consistent.
static void ring(struct bell *b, word *parked, uint64_t bit) {
	if (!(atomic_load(parked) & 1))
		return;
	atomic_fetch_or(&b->ready[bit / 64], 1ull << bit % 64);
	uint64_t w = atomic_load(b->arm);
	if (!(w & ARM_DIRECT) || atomic_load(b->rung) == (uint32_t)w)
		return;
	atomic_fetch_add(b->epoch, 1);
	syscall(SYS_futex, b->epoch, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
	atomic_store(b->rung, (uint32_t)w);
}

// message is one that has come, in the order in which it goes back.
struct message {
	struct message *next;
	uint64_t n, flags, tag, data, record, placed;
	int owes, done; // it has a record that is not told; its bytes are here
	uint64_t charge; // against the grant
	byte *bytes;
};

enum { ENDED = 1, DIED };

static struct {
	int dir, pidfd;
	_Atomic int over;
	const char *name;
	char box_name[32];
	uint64_t outbox;
	struct endpoint ours, peer;
	struct object box, peer_box; // outboxes
	struct lane *out;            // ours, the one that we use
	struct slot *slots;
	word *done;
	uint64_t id, out_row, sent, seen, granted, bytes; // what we send
	struct message *push; // its header went alone
	uint64_t generation, asked, want, put; // of that; and the head of the control ring
	struct lane *in;
	struct slot *in_slots;
	word *in_done;
	uint64_t in_id, in_row, in_place, in_mask, head, matched, rev; // what comes
	struct message *first, **last;
	uint64_t told; // tail of our control ring
	int owed;
	uint32_t arming;
} me;

static void open_endpoint(void) {
	struct { byte uuid[16]; uint64_t box; } r;
	CHECK(getentropy(&r, sizeof r) == 0, "random");
	me.outbox = (r.box >> 24 | 1) << 24;
	snprintf(me.box_name, sizeof me.box_name, "outbox-%010llx",
		(unsigned long long)(me.outbox >> 24));
	uint64_t half_of[2] = {0, 0};
	for (int i = 0; i < 16; i++)
		half_of[i / 8] = half_of[i / 8] << 8 | r.uuid[i];
	uint64_t box_attrs[16] = {PEERS, PEERS * SLOTS, me.outbox, half_of[0], half_of[1], 1, CHUNKS, CHUNK};
	struct section box[] = {{SECT_LANES, PEERS * 256, 256, PEERS, 0},
		{SECT_SLOTS, PEERS * SLOTS * 256, 256, PEERS * SLOTS, 0}, {SECT_DONE, PEERS * 8, 8, PEERS, 0},
		{SECT_POOL, CHUNKS * CHUNK, CHUNK, CHUNKS, 0}};
	byte box_uuid[16];
	CHECK(getentropy(box_uuid, sizeof box_uuid) == 0, "random");
	me.box = create(me.dir, me.box_name, KIND_OUTBOX, box_uuid, me.name, box_attrs, box, 4, 1);
	uint64_t attrs[16] = {PEERS, WINDOW, me.outbox};
	uint64_t mail = claims_at(PEERS) + PEERS * 8;
	struct section s[] = {{SECT_PAGE, PAGE, PAGE, 1, 0}, {SECT_ROWS, PEERS * 256, 256, PEERS, 0},
		{SECT_MAIL, mail, mail, 1, 0}};
	struct object o = create(me.dir, me.name, KIND_FABRIC, r.uuid, me.name, attrs, s, 3, 0);
	me.ours = lay(o);
	for (int i = 0; i < PEERS; i++)
		atomic_store(&me.ours.row[i].parked, 1);
	atomic_store(me.ours.bell.arm, ARM_GENERATION);
	me.out = section(me.box, SECT_LANES);
	me.slots = section(me.box, SECT_SLOTS);
	me.done = section(me.box, SECT_DONE);
	give_name(me.dir, o, me.name);
}

// begin takes place 0 of our outbox and a row of the peer's.
static void begin(const char *other) {
	me.peer = lay(attach(me.dir, other, KIND_FABRIC));
	byte *owner = me.peer.o.mem + 0xb00 + 128 * (get64(me.peer.o.mem + 0xa80) & 1);
	me.granted = me.peer.window;
	me.last = &me.first;
	me.pidfd = syscall(SYS_pidfd_open, (pid_t)get64(owner), 0);
	CHECK(me.pidfd >= 0, "pidfd");
	uint64_t half_of[2] = {0, 0};
	for (int i = 0; i < 16; i++)
		half_of[i / 8] = half_of[i / 8] << 8 | me.peer.o.mem[0x38 + i];
	me.id = me.outbox | 1 << 1;
	atomic_store(&me.out->parked, 1);
	atomic_store(&me.out->slots, SLOTS);
	atomic_store(&me.out->target, attr(me.peer.o, 2));
	atomic_store(&me.out->pays, 1);
	atomic_store(&me.out->high, half_of[0]);
	atomic_store(&me.out->low, half_of[1]);
	atomic_store(&me.out->id, me.id);
	for (me.out_row = 0; me.out_row < me.peer.rows; me.out_row++) {
		uint64_t free_one = 0;
		if (atomic_compare_exchange_strong(&me.peer.bell.claims[me.out_row], &free_one, me.id))
			break;
	}
	errno = ENOSPC;
	CHECK(me.out_row < me.peer.rows && atomic_load(me.peer.state) != CLOSED, "row");
	word always = 1;
	ring(&me.peer.bell, &always, me.out_row);
}

// adopt gives the first lane that the peer claims its row.
static void adopt(void) {
	for (uint64_t r = 0; r < PEERS && !me.in; r++) {
		uint64_t id = atomic_load(&me.ours.bell.claims[r]), place = id >> 12 & 0xfff;
		if (id == 0 || id >> 24 << 24 != attr(me.peer.o, 2))
			continue;
		char name[32];
		snprintf(name, sizeof name, "outbox-%010llx", (unsigned long long)(id >> 24));
		me.peer_box = attach(me.dir, name, KIND_OUTBOX);
		struct lane *l = (struct lane *)section(me.peer_box, SECT_LANES) + place;
		uint64_t slab = atomic_load(&l->slab), n = atomic_load(&l->slots), all = attr(me.peer_box, 1);
		errno = EBADMSG;
		CHECK(place < attr(me.peer_box, 0) && atomic_load(&l->id) == id && n >= 2 && n <= 1024 &&
			(n & (n - 1)) == 0 && n <= all && slab <= all - n, "lane of peer");
		me.in_slots = (struct slot *)section(me.peer_box, SECT_SLOTS) + slab;
		me.in_done = (word *)section(me.peer_box, SECT_DONE) + place;
		me.in_id = id, me.in_row = r, me.in_mask = n - 1, me.in_place = place;
		struct row *row = &me.ours.row[r];
		atomic_store(&row->head, 0);
		atomic_store(&row->granted, WINDOW);
		atomic_store(&row->owner, id);
		me.in = l;
	}
}

// look takes what the receiver has told of what we send.
static void look(void) {
	struct row *row = &me.peer.row[me.out_row];
	if (atomic_load(&row->owner) != me.id) // owner first, then the others
		return;
	me.seen = atomic_load(&row->head);
	me.granted = atomic_load(&row->granted);
	uint64_t tail = atomic_load(&row->control);
	errno = EBADMSG;
	CHECK(me.sent - me.seen < SLOTS && tail - me.asked <= 1, "row of peer");
	if (tail == me.asked)
		return;
	uint64_t record = atomic_load(&row->record[me.asked % RECORDS]);
	me.want = record >> 32;
	CHECK(me.push && (uint32_t)record == (me.generation & 0xffff) << 16 && me.want <= me.push->n,
		"record of peer");
	me.asked = tail;
	atomic_store(&me.out->control, tail);
	if (atomic_load(&row->owed))
		ring(&me.peer.bell, &row->parked, me.out_row);
}

// put publishes a slot, and copies what it has of a message: each slot has a chunk of its own.
static void put(struct message *m, uint64_t head, uint64_t from, uint64_t n) {
	struct slot *s = &me.slots[me.sent % SLOTS];
	if ((head & 0xff) != HEADER) {
		byte *to = s->payload;
		if (n > INLINE) {
			atomic_store(&s->more[1], me.sent % SLOTS * CHUNK);
			to = range(me.box, SECT_POOL, me.sent % SLOTS * CHUNK, n);
			head |= IN_POOL;
		}
		memcpy(to, m->bytes + from, n);
		n = n << 32;
	} else {
		atomic_store(&s->more[0], me.generation & 0xffff);
		n = m->n << 32;
	}
	atomic_store(&s->tag, m->tag);
	atomic_store(&s->data, m->data);
	atomic_store(&s->head, head | n);
	atomic_store(&s->seq, ++me.sent);
	ring(&me.peer.bell, &me.peer.row[me.out_row].parked, me.out_row);
}

// send_back sends what is whole, in its order, and one header alone at once.
static int send_back(void) {
	int work = 0;
	for (look(); me.sent - me.seen < SLOTS - 1; work++) {
		struct message *m = me.first;
		if (me.push) {
			uint64_t n = me.want - me.put < CHUNK ? me.want - me.put : CHUNK;
			if (me.asked != me.generation)
				return work; // it is not asked for
			put(me.push, SEGMENT, me.put, n);
			if ((me.put += n) < me.want)
				continue;
			m = me.push;
			me.push = NULL;
		} else if (!m || !m->done || m->owes) {
			return work;
		} else {
			me.matched += m->charge;
			if (!(me.first = m->next))
				me.last = &me.first;
			uint64_t charge = m->n > CHARGE ? m->n : CHARGE;
			if (m->n > CHUNK || me.bytes + charge > me.granted) {
				me.push = m, me.put = 0, me.generation++;
				put(m, HEADER | m->flags, 0, 0);
				continue;
			}
			me.bytes += charge;
			put(m, MESSAGE | m->flags, 0, m->n);
		}
		free(m->bytes);
		free(m);
	}
	return work;
}

// keep begins a message. It has its bytes, or gets them by segments.
static void keep(struct slot *s, uint64_t head, const byte *bytes) {
	struct message *m = calloc(1, sizeof *m);
	CHECK(m && (m->bytes = malloc((head >> 32) + 1)), "memory");
	m->n = head >> 32, m->flags = head & (TAGGED | DATA);
	m->tag = atomic_load(&s->tag), m->data = atomic_load(&s->data);
	m->done = bytes != NULL;
	if (bytes)
		memcpy(m->bytes, bytes, m->n);
	if ((head & 0xff) == HEADER) { // 0 bytes return a reference
		m->owes = 1;
		m->record = (head >> 16 & 0xffff) | (atomic_load(&s->more[0]) & 0xffff) << 16 |
			(bytes ? 0 : m->n << 32);
	} else {
		m->charge = m->n > CHARGE ? m->n : CHARGE;
	}
	*me.last = m;
	me.last = &m->next;
}

// segment goes to the message of its operation that has been asked for.
static void segment(uint64_t head, const byte *bytes) {
	struct message *m = me.first;
	uint64_t n = head >> 32;
	while (m && (m->done || m->owes || (m->record & 0xffff) != (head >> 16 & 0xffff)))
		m = m->next;
	CHECK(m && n <= m->n - m->placed && (n || !m->n), "segment");
	memcpy(m->bytes + m->placed, bytes, n);
	m->done = (m->placed += n) == m->n;
}

static int room(void) { return me.told - atomic_load(&me.in->control) < RECORDS; }

// ask tells the records that are owed, as far as the control ring has room.
static int ask(void) {
	int work = 0;
	struct row *row = &me.ours.row[me.in_row];
	for (struct message *m = me.first; m; m = m->next) {
		if (!m->owes)
			continue;
		if (!room()) {
			atomic_store(&row->owed, me.owed = 1);
			if (!room())
				return work;
		}
		atomic_store(&row->record[me.told % RECORDS], m->record);
		atomic_store(&row->control, ++me.told);
		m->owes = 0, work++;
	}
	if (me.owed)
		atomic_store(&row->owed, me.owed = 0);
	return work;
}

// examine takes what has come, sends back what it can, and tells the sender.
static int examine(void) {
	int work = 0;
	if (!me.in)
		adopt();
	if (!me.in)
		return 0;
	for (;; work++, me.head++) {
		struct slot *s = &me.in_slots[me.head & me.in_mask];
		if (atomic_load(&s->seq) != me.head + 1)
			break;
		uint64_t head = atomic_load(&s->head), n = head >> 32, what = head & 0xffff & ~(TAGGED | DATA);
		if (head == FIN)
			exit(0);
		errno = EBADMSG;
		const byte *here = s->payload;
		if (what & IN_POOL)
			here = range(me.peer_box, SECT_POOL, atomic_load(&s->more[1]), n);
		else if (what == HEADER)
			here = NULL;
		CHECK(n <= MOST && (n <= INLINE || here != s->payload) &&
			(head >> 16 & 0xffff) < OPS, "message");
		if ((what & ~IN_POOL) == MESSAGE || (what & ~IN_POOL) == HEADER)
			keep(s, head, here);
		else if ((what & ~IN_POOL) == SEGMENT)
			segment(head, here);
		else
			die("kind");
	}
	work += ask();
	work += send_back();
	if (work) {
		struct row *row = &me.ours.row[me.in_row];
		atomic_store(&row->head, me.head);
		atomic_store(&row->granted, me.matched + WINDOW);
		me.rev++;
		atomic_store(&row->rev, me.rev);
		ring(&me.peer.bell, &me.in->parked, me.peer.rows + me.in_place);
	}
	return work;
}

static int anything(uint64_t rev) {
	for (int i = 0; i < (2 * PEERS + 63) / 64; i++)
		if (atomic_load(&me.ours.bell.ready[i]))
			return 1;
	return atomic_load(&me.peer.row[me.out_row].rev) != rev ||
		(me.in && (atomic_load(&me.in_slots[me.head & me.in_mask].seq) == me.head + 1 ||
			(me.owed && room())));
}

// doze is R1 to R9. It has no end of its own, so that a wake that is lost is noticed.
static void doze(uint64_t rev) {
	struct bell *b = &me.ours.bell;
	word *row = me.in ? &me.ours.row[me.in_row].parked : NULL;
	for (int i = 0; i < (2 * PEERS + 63) / 64; i++)
		atomic_exchange(&b->ready[i], 0);
	if (row)
		atomic_store(row, 1);
	atomic_store(&me.out->parked, 1);
	atomic_thread_fence(memory_order_seq_cst);
	uint32_t epoch = atomic_load(b->epoch);
	if (!me.in)
		adopt();
	if (!anything(rev)) {
		atomic_store(b->arm, ARM_GENERATION | ARM_DIRECT | ++me.arming);
		if (!anything(rev) && !atomic_load(&me.over))
			syscall(SYS_futex, b->epoch, FUTEX_WAIT, epoch, NULL, NULL, 0);
		atomic_store(b->arm, ARM_GENERATION | me.arming);
	}
	if (row)
		atomic_store(row, 0);
	atomic_store(&me.out->parked, 0);
}

// watch notes that the input or the process of OTHER has ended, and wakes who sleeps.
static void *watch(void *unused) {
	struct pollfd p[2] = {{.fd = 0, .events = POLLIN}, {.fd = me.pidfd, .events = POLLIN}};
	while (poll(p, 2, -1) < 0)
		CHECK(errno == EINTR, "poll");
	atomic_store(&me.over, p[1].revents ? DIED : ENDED);
	atomic_fetch_add(me.ours.bell.epoch, 1);
	syscall(SYS_futex, me.ours.bell.epoch, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
	return unused;
}

static void leave(int alive) {
	if (alive) {
		struct slot *s = &me.slots[me.sent & (SLOTS - 1)];
		atomic_store(&s->head, FIN);
		atomic_store(&s->seq, ++me.sent);
		ring(&me.peer.bell, &me.peer.row[me.out_row].parked, me.out_row);
		if (me.in) // who finds the state gives the lane's place to the next
			atomic_store(me.in_done, me.in_id);
		atomic_store(me.ours.state, CLOSED);
		if (me.in) {
			atomic_store(&me.ours.row[me.in_row].rev, ++me.rev);
			word always = 1; // the sender may ignore the lane
			ring(&me.peer.bell, &always, me.peer.rows + me.in_place);
		}
	}
	unlinkat(me.dir, me.name, 0);
	close(me.box.fd); // its lock goes first: either the receiver sees that, or we its last word
	if (!alive || atomic_load(me.done) == me.id)
		unlinkat(me.dir, me.box_name, 0);
}

int main(int argc, char **argv) {
	if (argc < 4)
		return 2;
	int spin = argc > 4;
	me.dir = open(argv[1], O_DIRECTORY | O_RDONLY | O_CLOEXEC);
	CHECK(me.dir >= 0, argv[1]);
	me.name = argv[2];
	open_endpoint();
	begin(argv[3]);
	puts("ready");
	fflush(stdout);
	pthread_t watcher;
	CHECK(pthread_create(&watcher, NULL, watch, NULL) == 0, "thread");
	while (!atomic_load(&me.over)) {
		uint64_t rev = atomic_load(&me.peer.row[me.out_row].rev);
		if (!examine() && !spin)
			doze(rev);
	}
	leave(me.over != DIED);
	if (me.over == DIED)
		puts("died");
	return 0;
}
