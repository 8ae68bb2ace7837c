// SPDX-License-Identifier: (MIT OR GPL-2.0)
//
// Steers UDP datagrams by destination port to AF_XDP sockets. Everything that it does not know for
// certain to be wanted goes to the kernel's stack, untouched: other protocols, fragments (a later
// part has no port, and the parts must end up in one place), IPv6 extension headers, more than two
// VLAN tags, and whatever ends too early.
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define MAX_TAGS 2
#define IP_FRAGMENT 0x3fff /* more fragments, or an offset */

/* Indices into counts; Counters in Go has the same order. */
enum {
	COUNT_REDIRECT,  /* given to a socket */
	COUNT_NO_SOCKET, /* port wanted, but no socket on this queue: passed */
	COUNT_PORT,      /* UDP to another port: passed */
	COUNT_FRAGMENT,  /* fragment: passed */
	COUNT_SHORT,     /* ends inside a header: passed */
	COUNT_OTHER,     /* anything else: passed */
	COUNT_MAX,
};

struct vlan_tag {
	__be16 tci;
	__be16 proto;
};

struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__type(key, __u32);
	__type(value, __u32);
	__uint(max_entries, 64);
} socks SEC(".maps");

/* Destination port in network order -> index in socks of the socket of queue 0. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, __be16);
	__type(value, __u32);
	__uint(max_entries, 1024);
} ports SEC(".maps");

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

static __always_inline int udp(struct xdp_md *ctx, void *at, void *end)
{
	struct udphdr *h = at;
	__u32 *base;
	int action;

	if ((void *)(h + 1) > end)
		return done(COUNT_SHORT, XDP_PASS);
	base = bpf_map_lookup_elem(&ports, &h->dest);
	if (!base)
		return done(COUNT_PORT, XDP_PASS);
	/* A queue without a socket falls back to the stack, not to a drop. */
	action = bpf_redirect_map(&socks, *base + ctx->rx_queue_index, XDP_PASS);
	return done(action == XDP_REDIRECT ? COUNT_REDIRECT : COUNT_NO_SOCKET, action);
}

static __always_inline int ipv4(struct xdp_md *ctx, void *at, void *end)
{
	struct iphdr *h = at;

	if ((void *)(h + 1) > end)
		return done(COUNT_SHORT, XDP_PASS);
	if (h->version != 4 || h->ihl < 5 || h->protocol != IPPROTO_UDP)
		return done(COUNT_OTHER, XDP_PASS);
	if (h->frag_off & bpf_htons(IP_FRAGMENT))
		return done(COUNT_FRAGMENT, XDP_PASS);
	return udp(ctx, at + h->ihl * 4, end);
}

static __always_inline int ipv6(struct xdp_md *ctx, void *at, void *end)
{
	struct ipv6hdr *h = at;

	if ((void *)(h + 1) > end)
		return done(COUNT_SHORT, XDP_PASS);
	if (h->version != 6 || h->nexthdr != IPPROTO_UDP)
		return done(COUNT_OTHER, XDP_PASS);
	return udp(ctx, h + 1, end);
}

SEC("xdp")
int steer(struct xdp_md *ctx)
{
	void *at = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = at;
	__be16 proto;
	int i;

	if ((void *)(eth + 1) > end)
		return done(COUNT_SHORT, XDP_PASS);
	proto = eth->h_proto;
	at = eth + 1;
#pragma unroll
	for (i = 0; i < MAX_TAGS; i++) {
		struct vlan_tag *tag = at;

		if (proto != bpf_htons(ETH_P_8021Q) && proto != bpf_htons(ETH_P_8021AD))
			break;
		if ((void *)(tag + 1) > end)
			return done(COUNT_SHORT, XDP_PASS);
		proto = tag->proto;
		at = tag + 1;
	}
	if (proto == bpf_htons(ETH_P_IP))
		return ipv4(ctx, at, end);
	if (proto == bpf_htons(ETH_P_IPV6))
		return ipv6(ctx, at, end);
	return done(COUNT_OTHER, XDP_PASS);
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
