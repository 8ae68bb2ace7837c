package cq_test

import (
	"strings"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
)

func init() {
	createUnnamed = func(t testing.TB, o cq.Options) *cq.Queue {
		return anonymous(t, siteOf(t).queue(o))
	}
	attachUnnamed = join
}

// siteOf says which kind of queue without a name a repeated test makes.
func siteOf(t testing.TB) site {
	return site{memfd: true, others: strings.HasPrefix(t.Name(), "TestForOthers/")}
}

// TestWithoutName repeats tests with queues that have no name; create and attach make them below
// this one.
func TestWithoutName(t *testing.T) {
	shmtest.Long(t)
	for name, test := range repeated() {
		t.Run(name, test)
	}
}

// TestForOthers repeats them with queues for other users, but for what is about options that those
// do not have, and about a writer that goes on in another one's lane.
func TestForOthers(t *testing.T) {
	shmtest.Conforms(t)
	shmtest.Long(t)
	tests := repeated()
	delete(tests, "options")
	delete(tests, "overrun final")
	for name, test := range tests {
		t.Run(name, test)
	}
}

func repeated() map[string]func(*testing.T) {
	return map[string]func(*testing.T){
		"allocations":      TestCreditsAllocate,
		"awake":            TestAwake,
		"batch":            TestPostBatch,
		"close":            TestQueueCloses,
		"close ends waits": TestCloseEndsWaits,
		"close waits":      TestCloseWaits,
		"credit":           TestCredits,
		"credits":          TestCreditsNeverFail,
		"descriptor":       TestFDLevel,
		"descriptor close": TestFDClose,
		"errors":           TestErrorsOfTwoLanes,
		"fairness":         TestFairness,
		"full":             TestPostFull,
		"latch":            TestSignalLatch,
		"many lanes":       TestManyLanes,
		"marks":            TestMarks,
		"options":          TestOptions,
		"order":            TestReadOrder,
		"overrun final":    TestOverrunIsFinal,
		"overrun nothing":  TestNothingAfterOverrun,
		"overrun own":      TestOverrunFromOwnLane,
		"overrun wakes":    TestOverrunWakes,
		"overrun wait":     TestThresholdOverrun,
		"peek":             TestPeekRelease,
		"peek context":     TestPeekContext,
		"peek error":       TestPeekStopsAtError,
		"peek wrap":        TestPeekWrap,
		"read from":        TestReadFrom,
		"refused close":    TestRefusedCloseDisturbsNobody,
		"reserve":          TestReserveCommit,
		"shared":           TestShared,
		"signal":           TestSignalOneOfSeveral,
		"signal all":       TestSignalAllOfSeveral,
		"spin":             TestSpinEnds,
		"sread load":       TestReadTimeoutUnderLoad,
		"threshold":        TestThreshold,
		"threshold lane":   TestThresholdNewLane,
		"threshold last":   TestThresholdLastOne,
		"threshold part":   TestThresholdPart,
		"threshold sleeps": TestThresholdSleeps,
		"threshold more":   TestThresholdTooMuch,
		"writer closed":    TestWriterAfterClose,
	}
}
