/* What rings carry. The work per message is word for word that of the Go side. */

/* The words of a completion: context, flags, length, buffer, data, tag, source, meta. */
static inline void fill(uint64_t *w, uint64_t s)
{
	w[0] = s;
	w[1] = 0x0402;
	w[2] = 64;
	w[3] = (1ull << 48) + (s << 11);
	w[4] = ~s;
	w[5] = s + 0x7a67;
	w[6] = 3;
	w[7] = (s << 32) + 1;
}

static inline uint64_t sum(const uint64_t *w)
{
	return ((w[0] + w[1]) + (w[2] + w[3])) + ((w[4] + w[5]) + (w[6] + w[7]));
}
