// SPDX-License-Identifier: (MIT OR GPL-2.0)
//
// Steers frames to AF_XDP sockets by rules. What no rule matches goes to the kernel's stack,
// untouched, and so does all that the program does not understand for certain: fragments (a later
// part has no port, and the parts must end up in one place), unusual IPv6 extension headers, and
// whatever ends too early.
//
// RuleSet in rule_model_test.go is the same in Go; a test compares the two on random frames.
#include <linux/bpf.h>
#include <linux/icmpv6.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define MAX_TAGS 2
#define MAX_EXTENSIONS 6
#define IP_FRAGMENT 0x3fff /* more fragments, or an offset */
#define VLAN_ID 0x0fff

/* Fields that a rule names. As a number they say which of two rules is the more special one. */
#define FIELD_LOCAL 1
#define FIELD_ETHERTYPE 2
#define FIELD_VLAN 4
#define FIELD_DST 8
#define FIELD_PORT 16
#define COMBINATIONS 32

/* Sets of combinations of fields. */
#define WITHOUT_ADDRESS 0x00000055 /* neither a destination nor a local one */
#define WITHOUT_PORT 0x0000ffff
#define WITH_PORT 0xffff0000
#define WITH_DST 0xff00ff00
#define WITH_LOCAL 0xaaaaaaaa

/* Indices into counts; Counters in Go has the same order. COUNT_NONE is no index. */
enum {
	COUNT_REDIRECT,  /* given to a socket */
	COUNT_NO_SOCKET, /* wanted by a rule, but no socket on this queue: passed */
	COUNT_PORT,      /* UDP that no rule matches: passed */
	COUNT_FRAGMENT,  /* fragment: passed */
	COUNT_SHORT,     /* ends inside a header: passed */
	COUNT_OTHER,     /* anything else: passed */
	COUNT_KEPT,      /* what the host needs to stay reachable: passed */
	COUNT_RULE_PASS, /* passed by a rule */
	COUNT_RULE_DROP, /* dropped by a rule */
	COUNT_MAX,
	COUNT_NONE = COUNT_MAX,
};

enum { ACTION_SOCKET, ACTION_KERNEL, ACTION_DROP };

/* The port of SSH, in network order, or 0: frames to it go to the stack. */
volatile const __be16 ssh_port;
/* Frames may be in more than one buffer. */
volatile const __u8 multi_buffer;

struct vlan_tag {
	__be16 tci;
	__be16 proto;
};

struct extension {
	__u8 next;
	__u8 len; /* in 8 bytes, the first 8 not counted */
	__u8 type;
	__u8 segments_left;
	__u32 rest;
};

/* Family and address, so that a prefix of one family never matches the other. */
struct net_key {
	__u32 prefix_len;
	__u32 family;
	__u8 addr[16];
};

/* Two fields of 16 bits a word, the first one below: the hash reads words, and a word that was just
 * stored in halves makes it wait. */
struct rule_key {
	__u32 net;
	__u32 port_ethertype;
	__u32 vlan_fields;
};

struct rule_value {
	__u32 rule; /* index into hits */
	__u32 action;
	__u32 base; /* slot of queue 0 */
};

struct hit {
	__u64 frames;
	__u64 bytes;
	__u64 no_socket;
};

/* The hardware address that frames to an address of the interface, or to a group that it is in, are
 * sent to. */
struct local {
	__u16 mac[ETH_ALEN / 2];
};

struct flow {
	struct net_key dst;
	__be16 ethertype;
	__be16 port;
	__u16 vlan;
	__u32 tagged; /* with more than a priority */
	__u32 todo; /* combinations of fields that may match */
	int miss;   /* what to count if nothing does */
};

struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__type(key, __u32);
	__type(value, __u32);
	__uint(max_entries, 64);
} socks SEC(".maps");

/* One word: the combinations of fields that any rule names. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, __u32);
	__uint(max_entries, 1);
} kinds SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct rule_key);
	__type(value, struct rule_value);
	__uint(max_entries, 65536);
} rules SEC(".maps");

/* Destination prefix -> number of a net. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct net_key);
	__type(value, __u32);
	__uint(max_entries, 1024);
} nets SEC(".maps");

/* Addresses of the interface and groups that it is in, with all bits as the prefix. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct net_key);
	__type(value, struct local);
	__uint(max_entries, 4096);
} locals SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct hit);
	__uint(max_entries, 1024);
} hits SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, COUNT_MAX);
} counts SEC(".maps");

static __always_inline int done(__u32 what, int action)
{
	__u64 *n = bpf_map_lookup_elem(&counts, &what);

	if (n)
		*n += 1;
	return action;
}

/* What follows the IP header, at at. */
static __always_inline int transport(struct flow *f, __u8 proto, void *at, void *end)
{
	__be16 *ports = at;

	f->todo &= WITHOUT_PORT;
	switch (proto) {
	case IPPROTO_UDP: {
		struct udphdr *h = at;

		if ((void *)(h + 1) > end)
			return COUNT_SHORT;
		f->todo |= WITH_PORT;
		/* A client of DHCP must hear, unless a rule wants just its port. */
		if (h->dest == bpf_htons(68) || h->dest == bpf_htons(546))
			f->todo = WITH_PORT;
		f->port = h->dest;
		f->miss = COUNT_PORT;
		return COUNT_NONE;
	}
	case IPPROTO_TCP:
		if ((void *)(ports + 2) > end)
			return COUNT_SHORT;
		return ssh_port && ports[1] == ssh_port ? COUNT_KEPT : COUNT_NONE;
	case IPPROTO_IGMP:
		return COUNT_KEPT;
	case IPPROTO_ICMPV6: {
		struct icmp6hdr *h = at;

		if ((void *)(h + 1) > end)
			return COUNT_SHORT;
		/* Multicast listeners, neighbours, redirects, and the second kind of listener reports. */
		if ((h->icmp6_type >= 130 && h->icmp6_type <= 137) || h->icmp6_type == 143)
			return COUNT_KEPT;
	}
	}
	return COUNT_NONE;
}

static __always_inline int ipv4(struct flow *f, void *at, void *end)
{
	struct iphdr *h = at;

	if ((void *)(h + 1) > end)
		return COUNT_SHORT;
	if (h->version != 4 || h->ihl < 5)
		return COUNT_OTHER;
	if (h->frag_off & bpf_htons(IP_FRAGMENT))
		return COUNT_FRAGMENT;
	f->dst.family = 4;
	__builtin_memcpy(f->dst.addr, &h->daddr, 4);
	f->dst.prefix_len = 32 + 32;
	return transport(f, h->protocol, at + h->ihl * 4, end);
}

static __always_inline int ipv6(struct flow *f, void *at, void *end)
{
	struct ipv6hdr *h = at;
	__u32 off = sizeof(*h);
	__u8 proto;
	int i;

	if ((void *)(h + 1) > end)
		return COUNT_SHORT;
	if (h->version != 6)
		return COUNT_OTHER;
	f->dst.family = 6;
	__builtin_memcpy(f->dst.addr, &h->daddr, 16);
	f->dst.prefix_len = 32 + 128;
	proto = h->nexthdr;
	for (i = 0; i <= MAX_EXTENSIONS; i++) {
		struct extension *x = at + (off & 0x3fff);

		if (proto == IPPROTO_FRAGMENT)
			return COUNT_FRAGMENT;
		if (proto != IPPROTO_HOPOPTS && proto != IPPROTO_ROUTING && proto != IPPROTO_DSTOPTS)
			return transport(f, proto, x, end);
		if ((void *)(x + 1) > end)
			return COUNT_SHORT;
		/* Options for every hop come first. With segments left it is the kernel's to send on. */
		if ((proto == IPPROTO_HOPOPTS && i) || (proto == IPPROTO_ROUTING && x->segments_left))
			return COUNT_OTHER;
		proto = x->next;
		off += (x->len + 1) * 8;
	}
	return COUNT_OTHER;
}

/* Fills in f, and returns what to count if the frame is the kernel's anyway. */
static __always_inline int parse(struct flow *f, void *at, void *end)
{
	struct ethhdr *eth = at;
	__be16 proto;
	int i;

	if ((void *)(eth + 1) > end)
		return COUNT_SHORT;
	proto = eth->h_proto;
	at = eth + 1;
#pragma unroll
	for (i = 0; i < MAX_TAGS; i++) {
		struct vlan_tag *tag = at;

		if (proto != bpf_htons(ETH_P_8021Q) && proto != bpf_htons(ETH_P_8021AD))
			break;
		if ((void *)(tag + 1) > end)
			return COUNT_SHORT;
		if (i == 0)
			f->vlan = bpf_ntohs(tag->tci) & VLAN_ID;
		f->tagged |= f->vlan | i;
		proto = tag->proto;
		at = tag + 1;
	}
	f->ethertype = proto;
	if (proto == bpf_htons(ETH_P_IP))
		return ipv4(f, at, end);
	if (proto == bpf_htons(ETH_P_IPV6))
		return ipv6(f, at, end);
	f->todo &= WITHOUT_ADDRESS;
	return proto == bpf_htons(ETH_P_ARP) ? COUNT_KEPT : COUNT_NONE;
}

/* Whether the frame is for the interface itself: untagged, to one of its addresses and the hardware
 * address that belongs to that. A tag of priority alone counts as none. */
static __always_inline int is_local(struct flow *f, struct ethhdr *eth)
{
	__u16 *to = (void *)eth->h_dest;
	struct local *l;

	if (f->tagged)
		return 0;
	l = bpf_map_lookup_elem(&locals, &f->dst);
	return l && l->mac[0] == to[0] && l->mac[1] == to[1] && l->mac[2] == to[2];
}

static __always_inline struct rule_value *find(struct flow *f, struct ethhdr *eth, __u32 todo)
{
	struct rule_value *v;
	__u32 net = 0, *n;
	int group, i;

	if (!todo)
		return 0;
	if (todo & WITH_LOCAL && !is_local(f, eth))
		todo &= ~WITH_LOCAL;
	if (todo & WITH_DST) {
		n = bpf_map_lookup_elem(&nets, &f->dst);
		if (n)
			net = *n;
		else
			todo &= ~WITH_DST;
	}
#pragma unroll
	for (group = COMBINATIONS - 8; group >= 0; group -= 8) {
		if (!(todo & 0xffu << group))
			continue;
#pragma unroll
		for (i = group + 7; i >= group; i--) {
			struct rule_key key;

			if (!(todo & 1u << i))
				continue;
			key.net = i & FIELD_DST ? net : 0;
			key.port_ethertype = (i & FIELD_PORT ? f->port : 0) |
					     (i & FIELD_ETHERTYPE ? (__u32)f->ethertype << 16 : 0);
			key.vlan_fields = (i & FIELD_VLAN ? f->vlan : 0) | i << 16;
			v = bpf_map_lookup_elem(&rules, &key);
			if (v)
				return v;
		}
	}
	return 0;
}

static __always_inline int redirect(struct xdp_md *ctx, struct rule_value *v, struct hit *hit)
{
	/* A queue without a socket falls back to the stack, not to a drop. */
	int action = bpf_redirect_map(&socks, v->base + ctx->rx_queue_index, XDP_PASS);

	if (action == XDP_REDIRECT)
		return done(COUNT_REDIRECT, action);
	if (hit)
		hit->no_socket++;
	return done(COUNT_NO_SOCKET, XDP_PASS);
}

SEC("xdp")
int steer(struct xdp_md *ctx)
{
	void *at = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct flow f = { .todo = ~0, .miss = COUNT_OTHER };
	struct rule_value *v;
	__u32 zero = 0, *any;
	struct hit *hit;
	int kept;

	kept = parse(&f, at, end);
	if (kept != COUNT_NONE)
		return done(kept, XDP_PASS);
	any = bpf_map_lookup_elem(&kinds, &zero);
	v = any ? find(&f, at, *any & f.todo) : 0;
	if (!v)
		return done(f.miss, XDP_PASS);
	hit = bpf_map_lookup_elem(&hits, &v->rule);
	if (hit) {
		hit->frames++;
		hit->bytes += multi_buffer ? bpf_xdp_get_buff_len(ctx) : end - at;
	}
	if (v->action == ACTION_SOCKET)
		return redirect(ctx, v, hit);
	if (v->action == ACTION_DROP)
		return done(COUNT_RULE_DROP, XDP_DROP);
	return done(COUNT_RULE_PASS, XDP_PASS);
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
