package model

// Steps of the bell between users. The names are those of the package comment and of the code.
const othersBase step = 200

const (
	oP1  = othersBase + iota // store tail
	oP2                      // load parked; 0: done
	oQ3                      // rung++ in the own lane
	oQ4                      // load armed
	oQ5                      // write the pipe
	oQ6                      // rung++ once more, behind the load of armed
	oQ7                      // wake the own word
	oR0                      // lock
	oH1                      // load rung of a lane, mark it
	oR1                      // swap ready into cand
	oR2                      // un-park
	oR3                      // drain, unlock
	oR4                      // park
	oR4t                     // tails again, unlock
	oR5                      // load epoch
	oR6                      // lock, arm
	oR7                      // second look, unlock
	oR8                      // sleep on epoch, and on the words of the lanes
	oR8l                     // mutant: load the words to sleep on just now
	oR9                      // disarm
	oT4                      // reset the pipe of a lane
	oT6                      // arm the descriptor
	oT7                      // second look
	oT8                      // epoll_wait
	oS1                      // take D.ready
	oS2                      // queue off the list, lock
	oS3                      // load D.epoch
	oS4                      // arm D
	oS5                      // second look
	oS6                      // sleep on D.epoch
	oS7                      // disarm D
	oK1                      // keeper: load rung of a lane
	oK2m                     // mark it
	oK2a                     // load armed
	oK2e                     // epoch++
	oK2w                     // wake
	oK2r                     // store rung
	oK2d                     // set D.ready
	oK2D                     // load D.armed, D.rung
	oK2E                     // D.epoch++
	oK2W                     // wake
	oK2R                     // store D.rung
	oK3                      // sleep on the words of the lanes
	oU1                      // a producer dies
	oU2                      // its notice marks the lane
	oU3                      // epoch++
	oU4                      // wake all, write the eventfd
	oU5                      // the queue goes on the list
	oU6                      // D.epoch++
	oU7                      // wake all
	oDone
)

var othersStepNames = [...]string{"P1 store tail", "P2 load parked", "Q3 rung++", "Q4 load armed",
	"Q5 write pipe", "Q6 rung++", "Q7 wake", "lock", "H1 load rung, mark", "R1 swap ready",
	"R2 un-park",
	"R3 drain", "R4 park", "R4 tails again", "R5 load epoch", "R6 arm", "R7 second look",
	"R8 sleep", "R8 load rung", "R9 disarm", "T4 reset pipe", "T6 arm", "T7 second look",
	"T8 epoll_wait", "S1 take D.ready", "S2 queue off the list", "S3 load D.epoch", "S4 arm D",
	"S5 second look", "S6 sleep", "S7 disarm D", "K1 load rung", "K2 mark", "K2 load armed",
	"K2 epoch++", "K2 wake", "K2 store rung", "K2 set D.ready", "K2 load D.armed", "K2 D.epoch++",
	"K2 wake D", "K2 store D.rung", "K3 sleep", "U1 death", "U2 mark", "U3 epoch++", "U4 wake",
	"U5 list", "U6 D.epoch++", "U7 wake D", "done"}

// othersBug is a deviation that must lose something.
type othersBug uint8

const (
	oNone othersBug = iota
	oRingFirst
	oArmedFirst
	oWakeFirst
	oCountOnce
	oNoTailsAgain
	oFreshWords
	oNoWords
	oNoSecondLook
	oMuteRelayed
	oKeeperForgets
	oKeeperArmed
	oResetAfterArm
	oResetAfterLook
	oNoPipeSecondLook
	oNoNotice
	oNoticeNoMark
	oNoHearInLook
)
