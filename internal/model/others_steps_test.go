package model

// Steps of the bell between users. The names are those of doorbell's doc.
const (
	oP1  step = iota // store tail
	oP2              // load parked; 0: done
	oQ3              // rung++ in the own lane
	oQ4              // load armed
	oQ5              // write the pipe
	oQ6              // rung++ once more, behind the load of armed
	oQ7              // wake the own word
	oR0              // lock
	oH1              // load rung of a lane, mark it
	oR1              // swap ready into cand
	oR2              // un-park
	oR3              // drain, unlock
	oR4              // park
	oR4t             // tails again, unlock
	oR5              // load epoch
	oR6              // lock, arm
	oR7              // second look, unlock
	oR8              // sleep on epoch, and on the words of the lanes
	oR8l             // mutant: load the words to sleep on just now
	oR9              // disarm
	oT4              // reset the pipe of a lane
	oT6              // arm the descriptor
	oT7              // second look
	oT8              // epoll_wait
	oS1              // take D.ready
	oS2              // queue off the list, lock
	oS3              // load D.epoch
	oS4              // arm D
	oS5              // second look
	oS6              // sleep on D.epoch
	oS7              // disarm D
	oK1              // keeper: load rung of a lane
	oK2m             // mark it
	oK2a             // load armed
	oK2e             // epoch++
	oK2w             // wake
	oK2r             // store rung
	oK2d             // set D.ready
	oK2D             // load D.armed, D.rung
	oK2E             // D.epoch++
	oK2W             // wake
	oK2R             // store D.rung
	oK3              // sleep on the words of the lanes
	oU1              // a producer dies
	oU2              // its notice marks the lane
	oU3              // epoch++
	oU4              // wake all, write the eventfd
	oU5              // the queue goes on the list
	oU6              // D.epoch++
	oU7              // wake all
	oDone
)

// Deviations.
const (
	oRingFirst        = "rings before it publishes"
	oArmedFirst       = "armed loaded before the ring is counted"
	oWakeFirst        = "wakes before it counts the ring"
	oCountOnce        = "counts once, before it loads armed, and mutes the next"
	oNoTailsAgain     = "no second look at the tail after parking"
	oFreshWords       = "words to sleep on loaded after the look, not what was heard"
	oNoWords          = "sleeps on the queue's word alone"
	oNoSecondLook     = "no second look after arming"
	oMuteRelayed      = "wakes muted although a keeper listens"
	oKeeperForgets    = "keeper sleeps on what rung is now, not on what it passed on"
	oKeeperArmed      = "keeper loads armed before it sleeps"
	oResetAfterArm    = "pipe reset between arming and second look"
	oResetAfterLook   = "pipe reset after the second look"
	oNoPipeSecondLook = "trywait without second look"
	oNoNotice         = "a death goes unnoticed"
	oNoticeNoMark     = "a death wakes and marks nothing"
)
