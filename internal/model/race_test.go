//go:build race

package model

// raceBuild: the explorer has one goroutine per variant and shares nothing, so the race detector
// only makes it slow.
const raceBuild = true
