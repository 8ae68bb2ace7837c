//go:build !race

package cq

// counterEdge costs nothing without the race detector; see counter_race_unsafe.go.
type counterEdge struct{}

func (counterEdge) init(uint64) {}
func (counterEdge) release()    {}
func (counterEdge) acquire()    {}
