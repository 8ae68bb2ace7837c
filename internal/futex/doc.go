// Package futex lets goroutines sleep on words that processes share, in few threads: [Wait] and
// [WakeAll] on one word, [WaitMany] on several, and a [Pool] of those who have others sleep for
// them.
package futex

// MostWords is how many words [WaitMany] can sleep on: the kernel's limit for one call.
const MostWords = 128
