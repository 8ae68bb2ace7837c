//go:build !race

package port_test

const raceEnabled = false
