// Package futex lets goroutines sleep on words that processes share, in few threads: [Wait] and
// [WakeAll] on one word, [WaitMany] on several, and a [Pool] of those who have others sleep for
// them.
package futex
