package kind

import (
	"fmt"
	"strings"

	"github.com/shmring/shmring/shm"
)

// Files in the directory of a queue, beside its lanes.
const (
	ReaderFile = "reader"
	FifoFile   = "wake"
)

const (
	lanePrefix = "lane-"
	laneFormat = lanePrefix + "%04d"
)

// LaneFile is the name of the lane that a row has.
func LaneFile(row int) string { return fmt.Sprintf(laneFormat, row) }

// IsLane reports whether a file counts as a lane, though no row may have one of that name.
func IsLane(file string) bool { return strings.HasPrefix(file, lanePrefix) }

// IsQueueObject reports whether a file counts as an object of a queue.
func IsQueueObject(file string) bool { return file == ReaderFile || IsLane(file) }

// LaneRow returns the row of a lane by the name of its file.
func LaneRow(file string) (row int, ok bool) {
	if _, err := fmt.Sscanf(file, laneFormat, &row); err != nil || row < 1 {
		return 0, false
	}
	return row, LaneFile(row) == file
}

// BellName is the name of a bell beside the queues.
func BellName(u shm.UUID) string { return shm.BellPrefix + u.String() }
