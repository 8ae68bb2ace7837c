// Package bench measures shmring against programs in C that do the same with nothing around it:
// a ring of the same layout, a raw futex, a raw eventfd, a bare cache line; and against the same
// calls of libfabric.
//
// Absolute figures of a virtual machine say little: where its processors sit changes several times
// a second and moves everything up to tenfold. So only ratios count. Both sides run as two pinned
// processes each, on the same two processors and the same physical memory, in short rounds that
// alternate; a cache-line ping-pong before and after every round tells where the processors are,
// and a pair of rounds counts only if all four probes agree and, where both sides spin, the four
// processes had their processors to themselves. A [Row] reports the median of the paired ratios
// with its 95% interval from order statistics, which assumes no distribution.
package bench
