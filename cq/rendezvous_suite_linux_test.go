package cq_test

import (
	"testing"
)

func init() { createUnnamed, attachUnnamed = anonymous, join }

// TestWithoutName repeats tests with queues that have no name; create and attach make them below
// this one.
func TestWithoutName(t *testing.T) {
	for name, test := range map[string]func(*testing.T){
		"allocations":      TestBindingAllocates,
		"awake":            TestAwake,
		"batch":            TestPostBatch,
		"close":            TestQueueCloses,
		"close ends waits": TestCloseEndsWaits,
		"close waits":      TestCloseWaits,
		"credit":           TestCredits,
		"credits":          TestCreditsNeverFail,
		"descriptor":       TestFDLevel,
		"descriptor close": TestFDClose,
		"error entry":      TestErrorEntry,
		"error order":      TestErrorOrder,
		"error wakes":      TestErrorWakes,
		"errors":           TestErrorsOfTwoLanes,
		"fairness":         TestFairness,
		"formats":          TestFormats,
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
		"read nothing":     TestReadNothing,
		"refused close":    TestRefusedCloseDisturbsNobody,
		"reserve":          TestReserveCommit,
		"shared":           TestShared,
		"signal":           TestSignalOneOfSeveral,
		"signal all":       TestSignalAllOfSeveral,
		"spin":             TestSpinEnds,
		"sread":            TestReadTimeout,
		"sread context":    TestReadContext,
		"sread load":       TestReadTimeoutUnderLoad,
		"threshold":        TestThreshold,
		"threshold lane":   TestThresholdNewLane,
		"threshold last":   TestThresholdLastOne,
		"threshold part":   TestThresholdPart,
		"threshold sleeps": TestThresholdSleeps,
		"threshold more":   TestThresholdTooMuch,
		"wait none":        TestWaitNone,
		"writer closed":    TestWriterAfterClose,
	} {
		t.Run(name, test)
	}
}
