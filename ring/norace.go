//go:build !race

package ring

// raceEdge costs nothing without the race detector; see race_unsafe.go.
type raceEdge struct{}

func (raceEdge) init(*Index)  {}
func (raceEdge) releaseFull() {}
func (raceEdge) acquireFull() {}
func (raceEdge) releaseFree() {}
func (raceEdge) acquireFree() {}
