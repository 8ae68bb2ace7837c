//go:build race

package doorbell

const raceEnabled = true
