// Package crash names the steps between which a process may die, and lets one die there.
//
// The protocols of the library are chains of single stores and system calls. What makes a death
// harmless is their order, so each place where another order would lose something has a label, and
// the code calls [At] there. Built without the tag shmring_steps, At is empty and [On] is false:
// nothing is left in the program. Built with it, [At] counts how often each step was passed, and
// kills the process with SIGKILL, as abruptly as anybody else could, at the n-th passage of the one
// that the environment names:
//
//	SHMRING_STEP=publish-stored:3 shmctl …
//
// The list of [Label] is the list of all such places in the order of each protocol: the name says
// what has been done when the process dies.
package crash

import (
	"slices"
	"strings"
	"sync"
)

// Env is the environment variable that names the step to die at, "label" or "label:n".
const Env = "SHMRING_STEP"

// Label is a step.
type Label uint8

// The steps, protocol by protocol.
const (
	None Label = iota

	// An object is made (shm, create.go).
	CreateAllocated // memory is there, nothing written
	CreateFilled    // header and sections are written, the lock is not taken
	CreateLocked    // the lock is taken, there is no name
	CreateAside     // the name is there, in a directory that nobody looks for
	CreateLinked    // the name is there

	// An object is taken over (shm, claim.go).
	ClaimLocked // the lock is taken, the record still names the former owner
	ClaimStored // the record names this process
	ClaimLeft   // the record says "released", the lock is still held

	// A writer attaches (cq, attach.go).
	AttachClaimed   // the lane is ours, nobody knows
	AttachWritten   // order and epoch are written, the reader is not told
	AttachAnnounced // the reader was told

	// A writer posts (cq, writer.go; internal/wake, ringer.go).
	Filled         // slots are filled, the tail is the old one
	Stamped        // kind, sequence and hints of a batch are written too
	PublishStored  // the tail is stored, the row was not looked at (P1)
	RingParked     // the row was parked, the lane is not marked (P2)
	RingMarked     // the lane is marked, the armed word was not looked at (P3)
	RingWoken      // the reader is woken, the arming is not marked rung (P5)
	PublishEnded   // everything is done, the poster was not told
	WriterClosing  // the writer is closed, its lane is still ours
	WriterReleased // the lane is given back
	Overran        // the lane says that it overran, the reader was not rung

	// A writer rings a reader of another user (internal/wake, ringer.go).
	OthersParked  // the row was parked, the lane does not count the ring (Q2)
	OthersCounted // it does, the armed word was not looked at (Q3)
	OthersPiped   // a byte is in the lane's pipe, the ring is not noted (Q5)
	OthersAgain   // the ring is counted once more, who sleeps on it is not woken (Q6)
	OthersWoken   // all are woken, the ring is not noted (Q7)

	// A reader listens to writers of other users (internal/wake, sleep.go and face_linux.go).
	OthersHeard // a ring was heard and will not be again, the lane is not marked (H1)
	PipeEmptied // a lane's pipe is empty, and not watched again
	RelayHeard  // a relay has heard a ring and will not again, it is not passed on (K1)
	RelayMarked // the lane is marked, the armed word was not looked at (K2)
	RelaySleep  // nothing was there: the next instruction sleeps (K3)

	// A writer posts an event (cq, eventwrite.go); what is not in order goes the way of batches.
	EventFilled    // slot and payload are filled, the tail is the old one
	EventPublished // the tail is stored, the row was not looked at (P1)

	// A reader sleeps (internal/wake, bell.go and sleep.go).
	ParkStored // rows are parked, nothing was paid or looked at again (R4)
	ParkPaid   // the barrier was paid, tails were not looked at again
	ArmStored  // the queue is armed, marks were not looked at (R6)
	SleepNext  // nothing was there: the next instruction sleeps (R8)
	SleepEnded // woken, and still armed

	// A reader takes (cq, read.go and peek.go).
	TakeMarks    // hints of ready lanes are taken, and known to nobody else
	PeekChosen   // entries are chosen, no word says so
	PeekStored   // the row says that they are handed out
	ReadCopied   // entries are copied, the head is the old one
	ReadReleased // the head is stored, the caller has not got them
	Releasing    // the caller is done with entries, the head is the old one
	Released     // the head is stored

	// A reader takes an event (cq, eventread.go).
	EventCopied   // the event is copied, no word says so
	EventPinned   // the row says that it was seen, as for a peek
	EventReleased // the head is stored, the caller has not got the event

	// A set or channel waits (internal/wake, domain.go, set.go and channel.go).
	DomainTaken // hints of the domain are with its sets and channels, and known to nobody else
	DomainArmed // the domain is armed, marks were not looked at (S4)
	DomainSleep // nothing was there: the next instruction sleeps (S6)
	DomainWoken // woken, and still armed
	NotifyArmed // a queue is armed for its channel, where it stands was not noted (N3)
	NotifyFired // the event of an arming is taken, no getter has it

	// A producer rings a domain (internal/wake, domain.go).
	DomainMarked // the queue is marked, the armed word was not looked at (P6)
	DomainRung   // all are woken, the arming is not marked rung (P7)

	// A counter (cq, counter.go; internal/counterbell).
	CountSeated  // the seat is taken, its record still says who had it before
	CountJoined  // the record says who we are, nobody was told
	CountAdded   // the value is added to, nobody was looked for (C1)
	CountWoken   // all are woken, the arming is not marked rung (C6)
	CountArmed   // armed, neither peers nor the value were looked at (W3)
	CountSleep   // nothing was there: the next instruction sleeps (W5)
	CountLeaving // the record says that we left, the seat is still ours

	// The owner of an address vector (internal/kind, addresses.go; cq, addresses_insert.go).
	AddressFilling   // the row of a new address is being written
	AddressFilled    // the row is whole, no search finds it
	AddressPlaced    // searches find it, it is not counted
	AddressMoved     // a cell stands twice while a hole moves on
	AddressDisplaced // no search finds it, the row is whole
	AddressCleared   // the row is free, it is still counted
	AddressClaimed   // the vector is ours, what a death left in the middle is not repaired

	// A death is reported (cq, deathwatch.go).
	DeathProven  // it is proved, no record or event says so
	DeathTelling // the record says that it may be told, no event does
	DeathWritten // the event is written, the record does not say so

	// A reader comes and goes (cq, queue.go and close.go).
	AdoptClaimed   // the reader object is ours, nothing of it is mapped
	AdoptStarted   // the words of the new reader are written, lanes were not looked for
	DetachSilenced // writers do not ring any more, the object is still ours
	CloseCondemned // the queue is closed, all names are there
	CloseLanes     // lanes are unlinked, the reader object is not
	CloseUnlinked  // no object has a name, the directory is there
	CloseVacated   // the directory is gone

	// Somebody removes a dead queue (cq, collect.go).
	CollectLanes     // its lanes are claimed, the reader object is not
	CollectShut      // its reader object is locked and takes no writers, we may still give it back
	CollectClaimed   // everything is claimed, nobody was told
	CollectCondemned // writers that come are told, all names are there
	CollectUnlinked  // lanes are unlinked, the reader object is not
	CollectEmptied   // no object has a name, the directory is there
	CollectObject    // another dead object is claimed, its name is there

	// Both ends of a socket meet (cq, rendezvous.go).
	MeetSending  // a message is made, nothing is sent
	MeetSent     // it is sent
	MeetReceived // the peer's message and its descriptors are here
	AcceptTold   // a writer of another user was told that its lane is taken, and it is not

	// A writer of another user goes on with the successor of its reader (cq, follow.go).
	FollowFilled // the new lane has what the former reader left, and nobody knows it
	FollowTaken  // the successor has it, the former lane is still there
	FollowClosed // the former lane is gone

	// An endpoint begins to send to another (fabric, attach.go), which finds it (receive.go).
	FabricLaneFilled // the header of a lane is filled, it has no number
	FabricLaneNamed  // it has one, no row of the receiver's is claimed
	FabricClaimed    // a row is claimed, nobody was rung
	FabricMapped     // the receiver has mapped the lane, the row has no owner
	FabricRowFilled  // head and grant are stored, the owner is not
	FabricAdopted    // it is

	// Endpoints meet over a socket (fabric, meet.go).
	MeetPassed // what the other one reads is passed, what it has is not there
	MeetLed    // a lane leads to it, its own is not known
	MeetHeard  // it leads here, nobody looks at it

	// A message goes (fabric, send.go, pool.go and message.go).
	FabricChunkFilled // the payload is in a chunk, no slot names it
	FabricFilled      // the slot is filled, its sequence is the old one
	FabricPublished   // the sequence is stored, the row was not looked at
	FabricAsked       // the head of the control ring is stored, no segment is sent
	FabricSegmented   // a segment is in its slot or chunk, which is not published
	FabricLooked      // what the receiver told is loaded, no send has completed

	// It is examined (fabric, receive.go and message.go).
	FabricExamined   // messages are in buffers or the store, no word says so
	FabricHeadStored // the head is stored, the grant is the old one
	FabricRecorded   // records are in the control ring, its tail is the old one
	FabricGranted    // head, grant and control ring are stored, rev is the old one
	FabricTold       // rev is stored, the lane was not looked at
	FabricMatched    // the word of matches is stored, the grant is the old one
	FabricLent       // a message is lent, its receive has not ended
	FabricReturned   // a loan has ended, no record says so
	FabricFenced     // all before a fence has completed, what is behind it is in no slot

	// Memory of a peer is reached, and revoked (fabric, rma.go and region.go).
	ReachUsed     // the key is in our word, it was not looked up
	ReachMoved    // the bytes are there, the key is still in our word
	ReachEnded    // our word is 0, the peer was not told
	RegionFilled  // the words of a region are stored, its key is not
	RegionRevoked // the key holds no more, the words of peers were not looked at
	RegionFreed   // nobody uses it any more, its memory and its place are not free

	// An endpoint ends, or is dead (fabric, endpoint.go, receive.go and peer.go).
	FabricHeads    // the final heads are stored, the state is open
	FabricShut     // the state is closed, no sender was told
	FabricEnded    // the end of a lane is published
	FabricDone     // a receiver is done with a lane, the row is the lane's
	FabricDisowned // the row has no owner, it is claimed
	FabricFreed    // it is free, the sender's outbox was not looked at
	FabricNameless // the endpoint has no name, its outbox is there
	FabricReleased // the outbox is given back
	FabricBurying  // a death is proved, the objects of the dead are there
	FabricBuried   // its endpoint is removed, its outbox is not

	// A connection begins (fabric, listen.go, connlane.go and conn.go).
	ConnAsked    // it is asked for, nobody waits for the answer
	ConnOffered  // it is in the backlog, who asked is not told
	ConnRefusing // there is no room for it, who asked is not told
	ConnAccepted // it is open for who asked, the listener is not told
	ConnReady    // Accept can return it, who waits there is not woken

	// Bytes go (fabric, conn.go).
	ConnSent    // some bytes of a Write are published, the others are not
	ConnArrived // bytes are in the Read's buffer or private memory, no word says so
	ConnRead    // half a window was read, the peer may not send more

	// It ends, or its peer has died (fabric, conn.go, connlane.go and listen.go).
	ConnShut     // nothing more is written here, the peer is not told
	ConnClosing  // it is closed here, the peer is not told
	ConnHeard    // the peer has closed it, we have not said our last
	ConnFreed    // its number is free
	ConnLost     // it is known that the peer has gone, its connections stand
	ConnUnlisted // the listener has no name, who waits for Accept is not told

	// A connection of endpoints begins and ends by events (fabric, link.go).
	LinkAsking    // an endpoint waits for an answer, nobody is asked
	LinkRequested // a request has its number, no event tells of it
	LinkAccepting // an endpoint has the connection and its peer, who asked is not told
	LinkRejecting // the request has its answer, who asked is not told
	LinkPaired    // who asked takes messages of the peer, the connection is not open
	LinkConnected // it is open, no event says so
	LinkRaised    // CONNECTED is queued, what had come is held still
	LinkLowered   // receives have ended, SHUTDOWN is not queued
	LinkShutting  // the program wants no more of it, the peer is not told
	LinkLeaving   // its endpoint closes, the peer is not told
	LinkWithdrawn // who asked has gone, its number is not free

	// A group of endpoints is joined and left (fabric, group.go).
	GroupMade     // it has its name and no member, its maker has it
	GroupFilled   // the row of a member has its address, and is nobody's
	GroupListed   // senders find it, the change count is the old one
	GroupUnlisted // they do not find it, the change count is the old one

	// An application and a device process meet (xdp/device, dial.go and serve_linux.go). Labels that
	// begin with App are passed by the application, those with Dev by the device process.
	AppHello    // the application has said what it wants, nothing is booked
	DevBooked   // frames, sends, ports are booked and memory is made, nothing is sent
	DevGranted  // the application has its memory
	AppMemory   // it has handed over its payload memory
	DevJoined   // all queues are joined, the application is not told
	AppStarting // it asked for packets
	DevAttached // packets are moved for it, it is not told
	AppStarted  // it was told

	// A port is taken and dropped (xdp/device, ports_linux.go and keep.go).
	AppAsked     // it is asked for
	DevSteered   // packets to it are steered to the device process, nobody has it
	DevOwned     // it has an owner, who is not told
	AppAnswered  // the owner was told
	DevUnsteered // it is nobody's, and still steered

	// A datagram is sent (xdp/device, endpoint.go and app_linux.go).
	AppFilled    // the payload is in its slot, the command is not posted
	AppPosted    // the command is posted, the slot is not marked
	DevTaken     // a command is copied
	DevBuilding  // a frame and a row are taken for it, no packet is built
	DevPosted    // the packet is in the ring
	DevDone      // a batch of commands is carried out, none is released
	DevReleased  // they are
	DevKicked    // the kernel was told of packets
	DevReaped    // it is done with some, nobody knows
	DevMarked    // the slot says that it is free, there is no completion
	DevCompleted // there is

	// A datagram is received (xdp/device, engine_linux.go and deliver_linux.go).
	DevReceived  // packets are taken from the ring
	DevCopied    // those of an application are in its memory, nothing is published
	DevPublished // they are published, the device's frames are not free
	DevDropped   // the device's frames are free

	// Its frame is given back (xdp/device, endpoint.go and app_linux.go).
	AppGiving   // the application is done with the frame, nothing says so
	AppReturned // the command is posted, and not counted
	DevReturned // the frame is free, the command is not released

	// An application ends (xdp/device, serve_linux.go).
	DevForgotten // no packet is moved for it any more, everything else is still booked
	DevUnported  // its ports are free
	DevUnbooked  // its budget is free
	DevFreed     // its memory is gone, its place is not free

	// A device process ends, and an application finds the next (xdp/device, keep.go).
	AppNoticed   // the application knows, and has done nothing
	AppLost      // it knows which sends have no completion
	AppCancelled // they have one, nobody is told of the death
	AppTold      // somebody is
	AppMapped    // memory of the next device process is mapped
	AppSwitched  // sends go there, no packets come yet

	count
)

// list names the steps in their order, spelt as the environment gives them.
const list = `
none create-allocated create-filled create-locked create-aside create-linked claim-locked
claim-stored claim-left attach-claimed attach-written attach-announced filled stamped
publish-stored ring-parked ring-marked ring-woken publish-ended writer-closing writer-released
overran others-parked others-counted others-piped others-again others-woken others-heard
pipe-emptied relay-heard relay-marked relay-sleep event-filled event-published park-stored
park-paid arm-stored sleep-next sleep-ended take-marks peek-chosen peek-stored read-copied
read-released releasing released event-copied event-pinned event-released domain-taken
domain-armed domain-sleep domain-woken notify-armed notify-fired domain-marked domain-rung
count-seated count-joined count-added count-woken count-armed count-sleep count-leaving
address-filling address-filled address-placed address-moved address-displaced address-cleared
address-claimed death-proven death-telling death-written adopt-claimed adopt-started
detach-silenced close-condemned close-lanes close-unlinked close-vacated collect-lanes
collect-shut collect-claimed collect-condemned collect-unlinked collect-emptied collect-object
meet-sending meet-sent meet-received accept-told follow-filled follow-taken follow-closed
fabric-lane-filled fabric-lane-named fabric-claimed fabric-mapped fabric-row-filled
fabric-adopted meet-passed meet-led meet-heard fabric-chunk-filled fabric-filled
fabric-published fabric-asked fabric-segmented fabric-looked fabric-examined fabric-head-stored
fabric-recorded fabric-granted fabric-told fabric-matched fabric-lent fabric-returned
fabric-fenced reach-used reach-moved reach-ended region-filled
region-revoked region-freed fabric-heads fabric-shut fabric-ended fabric-done
fabric-disowned fabric-freed fabric-nameless fabric-released fabric-burying fabric-buried
conn-asked conn-offered conn-refusing conn-accepted conn-ready conn-sent conn-arrived conn-read
conn-shut conn-closing conn-heard conn-freed conn-lost conn-unlisted link-asking link-requested
link-accepting link-rejecting link-paired link-connected link-raised link-lowered link-shutting
link-leaving link-withdrawn group-made group-filled group-listed group-unlisted app-hello
dev-booked dev-granted app-memory dev-joined app-starting dev-attached app-started app-asked
dev-steered dev-owned app-answered dev-unsteered app-filled app-posted dev-taken dev-building
dev-posted dev-done dev-released dev-kicked dev-reaped dev-marked dev-completed dev-received
dev-copied dev-published dev-dropped app-giving app-returned dev-returned dev-forgotten
dev-unported dev-unbooked dev-freed app-noticed app-lost app-cancelled app-told app-mapped
app-switched
`

// names are made when somebody asks: most programs have no steps.
var names = sync.OnceValue(func() []string { return strings.Fields(list) })

// String returns the name, as the environment gives it.
func (l Label) String() string {
	if l >= count {
		return "unknown"
	}
	return names()[l]
}

// Labels returns all steps.
func Labels() []Label {
	all := make([]Label, 0, count-1)
	for l := None + 1; l < count; l++ {
		all = append(all, l)
	}
	return all
}

// Parse returns the step of that name.
func Parse(name string) (Label, bool) {
	at := slices.Index(names(), name)
	return Label(max(at, 0)), at > 0
}
