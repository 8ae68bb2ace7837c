//go:build race

package shmtest

// Race tells that races are looked for.
const Race = true
