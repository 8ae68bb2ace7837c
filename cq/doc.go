// Package cq is completion queues, event queues and counters in shared memory, with the semantics
// of libfabric's fi_cq(3), fi_eq(3), fi_cntr(3) and fi_poll(3) and of verbs' completion channels.
//
// A queue has one reader, which creates it, and many writers, each with a ring of its own, its
// lane. Nobody takes a lock to post, and a writer that dies owns nothing shared: what it had
// published is read, what it had not published never existed. A reader that dies leaves the queue
// to a successor.
//
//	q, err := cq.Create(cq.Named(d, "orders"), cq.Options{})   // the reader
//	w, err := cq.Attach(ctx, cq.Named(d, "orders"), o)         // a writer, in any process
//	err = w.Post(&cq.Entry{Context: 7, Flags: cq.FlagSend | cq.FlagMsg})
//	n, err := cq.ReadContext(ctx, q, buf, cq.ReadOptions{})    // buf is a []cq.Msg, say
//
// # Choosing a call
//
//	Create, Open            makes a queue; takes over or makes one   fi_cq_open
//	Attach                  joins one as a writer                    -
//	Read, ReadFrom          copies, removes, never blocks            fi_cq_read, fi_cq_readfrom
//	ReadContext             the same, blocking; see [ReadOptions]    fi_cq_sread, fi_cq_sreadfrom
//	Peek, Release           in place; removed when you say so        -
//	Queue.Entries           in place, one by one                     ibv_start_poll, ibv_next_poll
//	ReadErr                 the error entry that stopped a read      fi_cq_readerr
//	Queue.PeekedLane        whose the entries are, see [Lane]        -
//	TryWait, GetWait        for your own poll or epoll               fi_trywait, FI_GETWAIT
//	PostContext             waits for room, and ends with the reader -
//	Signal, SignalAll       end a blocking read                      fi_cq_signal
//	Close, Detach           destroy the queue, or leave it           fi_close, -
//	CloseAll                all that a program has open, in order    -
//	Credits                 room for what must not be refused        FI_RM_ENABLED
//
//	EventQueue              what is no data transfer: connections,   fi_eq, kfi_eq
//	                        registrations, overruns, user events
//	Counter                 values to add to and to wait for         fi_cntr
//	WaitSet, PollSet        many of these at once                    fi_wait, fi_poll
//	Channel                 one event per arming of a queue          ibv_comp_channel
//	AddressVector           addresses under small numbers, and       fi_av, FI_SOURCE
//	                        which of them a completion came from
//	MemoryRegion            memory under keys                        fi_mr
//	Hold, Feeder            an endpoint that is bound to these       fi_ep_bind
//
// The same three verbs make, take over and join every kind of object. Where that is says a [Place]:
// [Named] in a directory, [Unnamed], and then [Over] a socket whose other end calls [Queue.Accept],
// or [FromFD].
//
// The functions of the package may be called from anywhere, at any time. Those that take a queue or
// another object to work on, as Read, Drain and TryWait do, count as a call of its methods, whose
// rule is with their type.
//
// What each sentence of the manual pages became is in testdata/conformance.tsv: a test, or a
// deviation with its reason. Endpoints are those of packages fabric and xdp/endpoint.
//
// # What is promised
//
// Order is kept per lane. What a writer stored before it posted, in any memory that both sides map,
// is visible to whoever read the entry. Posting to a full lane fails with ErrFull (or overruns the
// queue, if it was created so); nothing is dropped in silence and nothing grows. A completion for
// which a credit was reserved always has room.
//
// Read is at most once: what it returned is gone, whatever becomes of the process. Peek and
// Release are at least once: a successor gets again what was not released, marked FlagRedelivered.
//
// # Closing
//
// No object can be closed while another one is bound to it (EBUSY, [ErrBusy]): an event queue while
// a queue reports to it, a queue while it is in a set, a writer while an endpoint posts with it. So
// what is bound is closed first: endpoints, writers, queues, counters and vectors, event queues,
// sets and channels, the directory. Deferred calls run backwards, which is that order if the
// objects are opened in the opposite one; an event queue that is opened after the queue that
// reports to it is closed before that, in vain. [CloseAll] takes them as they come.
//
// # Death
//
// Whoever dies owns nothing that others need. Survivors learn of it through the event queue that
// they bound ([Queue.BindEvents], [Writer.BindEvents], [EventWriter.BindEvents],
// [EventQueue.BindEvents], [Counter.BindEvents], [AddressVector.BindEvents]):
//
//	a writer died           its reader: EventPeerDeath, after which its entries can be read
//	a reader died           its writers: EventPeerDeath; then EventPeerNew when it has a
//	                        successor, or ErrPeerGone from posts where it can have none; and from
//	                        posts that wait for room (PostContext) while there is no successor
//	a user of a counter     whoever else has it open: EventPeerDeath, see [Counter.BindEvents]
//	the owner of a vector   who looks things up in it: EventPeerDeath, and EventPeerNew for the
//	                        next, see [AddressVector.BindEvents]
//	a device process died   an error completion with ECANCELED for each send that was under way,
//	                        and EventPeerDeath: see package xdp/device
//
// A death is what the kernel proves: the end of the process, or of its lock on what it owned. One
// goroutine a process waits for notices of it and looks ten times a second for what gives none,
// only while something is bound; nobody's post or read pays for it.
//
// A process that is stopped is not dead, however long: nothing is taken from it because time has
// passed. Times in this package bound something else. A wait looks again every 100 ms for deaths
// that give no notice, and so does the goroutine that reports them; a stopped writer's lane stays
// its own, and a stopped reader's lanes fill up (ErrFull). A rendezvous that has begun waits 10
// seconds for another user's next message, and [Queue.Serve] as long for any: then it ends
// (ErrTimedOut), as if it had not begun, and who was stopped learns so when it goes on. What
// waits for microseconds or some milliseconds waits for goroutines of its own process, which stop
// with it.
//
// A process that was forked without an exec, which Go does not do by itself, has the locks of the
// one that it is a copy of: while it lives nobody takes over what that one owned ([shm.BusyError]
// says so), though its death is known and reported.
//
// No other operation of this package can be cut off by somebody else's death, so that there is no
// error completion to make up: credits are the writer's own and go with it, insertions into an
// address vector and registrations of memory are done by the process that asked for them, a
// rendezvous ends with ErrPeerGone, and a value that a counter was given is there, whoever gave it.
// A vector whose owner died can be read as before and stays as it is.
//
// # Layout
//
// A queue named "orders" is a directory of that name with an object of the reader and one of
// each writer. See package shm for what every object begins with.
//
//	reader      reader-written, but for the hints       lane-0001   writer-written
//	  queue     armed word, state, descriptor             lane      tail, counters, epochs
//	  rows      per lane: parked, wake index              slots     64-byte entries
//	            head, peeked, statistics                  errors    error detail, same index
//	  hints     ready bits, epoch, rung, latch          wake        FIFO of a queue with WaitFD
//	  lane 0    the reader's own: lane, slots, errors
//
// An event queue is laid out alike, with longer detail records. A counter is one object of its own,
// which all its processes write; so is an address vector, which its owner writes. Beside them lies
// the bell of each process that waits on sets or channels, bell-<uuid>.
//
// A queue without a name is the same objects as memfds, without the FIFO: the reader's eventfd
// passes over the socket with them. Nobody can truncate them, for they are sealed.
//
// A lane's writer may be replaced: the next one takes the object over at its old tail and adds a
// line {generation, first index} to its epochs. The same holds for the reader.
//
// # Trust
//
// A queue with a name is for processes of one user: the name is below a directory that nobody else
// may enter. One without a name is too, unless it is created with [CrossUser]; then reader and
// writers may be of any users on their lists, and neither can write to memory of the other, which
// the kernel enforces. See [CrossUser] for what is different.
//
// In either case neither side believes the other: whatever comes out of shared memory is loaded
// once, bounded and then used, so that no byte that a broken peer writes costs more than an error.
// What an entry says is its writer's word, the context included: [Lane] says whose word it is.
//
// A process can do one thing to others of its own user, whom it could kill as well: truncate a file
// of a queue with a name. The memory is gone then, and the next access ends with SIGBUS each
// process that has the queue open. That threatens only objects in a directory that this user alone
// may enter, and tools survive it. A queue without a name cannot be truncated. The name of what was
// truncated is free again when its owner is dead: [Create], [Open] and [Remove] find that out.
package cq
