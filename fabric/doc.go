// Package fabric sends messages between processes of one machine. Its endpoints are libfabric's
// FI_EP_RDM: reliable datagrams, in order for each pair, that complete into queues of package cq.
//
//	e, err := fabric.Open(dir, "worker-1", fabric.Options{Transmit: w, Receive: w, Progress: ...})
//	to, err := e.Resolve("worker-2")        // fi_av_insert, by name; Insert takes an Address
//	err = e.Recv(buf, context)              // fi_recv; TRecv takes a tag, RecvMsg everything
//	err = e.Send(payload, to, context)      // fi_send; TSend has a tag, Inject is silent
//	err = e.SendContext(ctx, &fabric.Msg{}) // waits for room
//	n, err := cq.ReadContext(ctx, q, ...)   // moves the endpoint, and sleeps on its bell
//	b, err := e.Alloc(n)                    // memory that peers read in place: fill it, send it
//	b, err := e.Payload(&entry)             // a message in place; e.Release(entry) gives it back
//	r, err := e.Register(n, access)         // memory that others reach, by r.Key()
//	err = e.Read(buf, to, fabric.Remote{Key: key}, context) // fi_read; Write, Atomic
//
// # Memory
//
// An endpoint has two objects: one with its name, that says how far it has looked at what each
// sender sent, and an outbox with a lane for each peer that it sends to. Each process writes its
// own, but for hints. docs/fabric.md draws them and says which order each word needs.
//
// # Messages
//
// A message of up to [MaxInline] bytes lies in a slot of a lane until its receiver moves, one of
// up to 32 KiB in a chunk of Options.Chunks. The receiver copies it to a posted buffer, or to a
// private store if there is none, so that no lane ever stops for want of a buffer. How much one
// sender may have in that store is granted. Beyond it, and of longer messages, the header goes
// alone: the bytes stay with the sender until there is a buffer, and follow in segments, which
// takes moves of both sides. Such a message completes later than it is matched, so receives need
// not complete in the order of the messages.
//
// # Without a copy
//
// Memory of [Endpoint.Alloc] goes by reference: the header travels, and the receiver copies once,
// out of the sender's memory. A receive with FlagFrame copies nothing. It has no memory; its
// completion lends the message, mapped for reading only, until [Endpoint.Release]. The send
// completes then, or when the receiver has died or closed. What came otherwise is lent from private
// memory, as long as the message. Loans are sent on as any memory is, by a copy.
//
// Other memory is copied into shared chunks and out of them. What is longer than there are chunks
// for goes on as the sender moves.
//
// # Matching
//
// Messages with and without a tag are apart. A message gets the oldest receive that it is for: by
// its tag, but for the bits that the receive ignores, and by its sender, whatever number that has.
// Those without a receive are kept in the order in which they were examined, and a receive gets the
// oldest. A message finds the receives that name its sender and its whole tag by a hash, and they
// it; others are searched in their order.
//
// # Completions
//
// A send completes when its receiver has examined all of it (FI_DELIVERY_COMPLETE). If the receiver
// dies, what it had examined succeeds and the rest fails; nothing is said of what it did with it. A
// receive completes when the bytes are in its buffer; it stays posted whoever dies. Both reserve
// their room in the queue, and are EAGAIN if there is none.
//
// # Replies
//
// The Src of a receive's [cq.Entry] is the number of the sender if the receiver has inserted its
// address, and none before. So a request carries the bytes of its sender's address, and whoever
// replies inserts that:
//
//	request = e.Address().Append(request)                         // who asks
//	a, err := fabric.ParseAddress(buf[n-fabric.AddressBytes : n]) // who replies
//	to, err := e.Insert(a)
//
// If the process that should reply dies, no receive ends. So limit the wait, and ask again: a send
// to a dead peer is [ErrPeerDied]. A request of more than [MaxInline] bytes in memory of
// [Endpoint.Alloc] completes when its receiver has given it back, and fails if that dies before. So
// who takes it with FlagFrame should reply before Release. With Options.Events the death
// of the one peer is an EventShutdown, and ends all receives. [Serve] and [Caller] do what is said
// here on connections.
//
// # Progress
//
// Nothing moves by itself (FI_PROGRESS_MANUAL): the calls of the endpoint move it, and reads of its
// counters and of the queues in Options.Progress. Whoever waits for one of these sleeps until a
// peer wakes it, and costs nothing meanwhile. For who sleeps on a set, channel, counter or
// descriptor a goroutine moves the endpoint: such a wake takes one switch between threads more.
//
// # Levels
//
// Inject and transmit are as strong as delivery: the bytes are in the buffer that was posted, or in
// the receiver's store if there was none. Match says that the message has its receive, or was
// dropped, and may take for ever. Commit is for what changes memory of a peer: it is in the file of
// Options.RemoteFile, and synced. A send with FlagFence, and those behind it, go when all before it
// to the same peer have completed.
//
// # Remote memory
//
// What a peer has registered ([Endpoint.Register]) is read and written by the call, in its memory:
// the peer needs no call, and hears of data alone. So it has happened when the call returns, and
// lies before all that is sent later. What was sent before may be examined later. At level commit
// the peer has to move: the write completes when its file has the bytes.
//
// # Datagrams
//
// With Options.Datagram (FI_EP_DGRAM) no send waits for a receiver, and none is cq.ErrFull for want
// of its room: a message goes at once or is dropped, which Stats.Dropped counts where it happens. A
// send completes in its call, at level transmit. What arrives is whole and in order. Messages are
// of up to [MaxDatagram] bytes; stronger levels and remote memory are not for these endpoints.
//
// # Groups
//
// A group has a name in the directory, and endpoints that have joined it:
//
//	g, err := e.Join("prices", fabric.GroupOptions{Misses: true})
//	err = e.Send(payload, g.Addr(), context)  // to each other member; completions: FlagMulticast
//
// Each member gets its own copy, by the lane to it. How a group treats a slow member is said when
// it is made. By default all wait: a send is cq.ErrFull until every member has room, no member gets
// the message before or twice, and its one completion says that all have examined it, or ended.
// With Misses nobody waits: sends are those of datagrams, of as many bytes, and a member without
// room misses a message. Before the completion of the next one it is told, if the queue has room
// then: by an error entry without a context, with cq.EOverrun, how many in Data, and the sender's
// [Address] in ErrData.
//
// # Connections
//
// [Listen] and [Dial] give programs that know nothing of all this a net.Listener and a net.Conn:
//
//	l, err := fabric.Listen(dir, "web")     // err = http.Serve(l, handler)
//	c, err := fabric.Dial(ctx, dir, "web")  // in http.Transport.DialContext likewise
//
// and calls with a reply, which say of each failure whether it is safe to repeat:
//
//	err = fabric.Serve(ctx, dir, "count", handler)
//	a, err := fabric.NewCaller(dir, "count") // n, err := a.Call(ctx, request, reply)
//
// By events an endpoint gets one peer, as those of type FI_EP_MSG have:
//
//	p, err := fabric.ListenEvents(dir, "server", events)
//	r, err := p.Request(&ev)                  // of an EventConnReq
//	e, err := fabric.Open(dir, "s-1", fabric.Options{Events: events, Request: r, ...})
//	err = e.Accept(data)                      // EventConnected; or r.Reject(data)
//	err = other.Connect("server", data)       // EventConnected, with the data
//	err = e.Shutdown()                        // EventShutdown, on both sides
//
// # Other users
//
// What has a name is for processes of one user. Two of different users meet over a unix socket, and
// each maps for reading what the other one writes:
//
//	e, err := fabric.Meet(ctx, conn, allow, fabric.Options{}) // both call it; the peer is address 0
//	l := fabric.ListenOver(socket, allow)                     // a net.Listener
//	c, err := fabric.DialOver(ctx, conn, allow)               // a net.Conn
//
// # Files
//
//	options        what an endpoint is made with, and errors
//	endpoint       its life
//	send, receive  lanes of both directions
//	attach         how a lane begins
//	message        what a lane hands to receives and to the store
//	datagram       sends that wait for nobody
//	group          who is in a group; multicast what is sent there
//	level          who waits for a match, or behind a fence
//	pool           memory for payload: chunks, and pieces of the user's
//	loan           payload in place
//	region         memory that peers reach
//	rma            what reaches it; atomic what changes it
//	match          which receive a message gets
//	peer           who is at the other end: addressed, mapped, followed, given up
//	progress       what moves all; wait who waits for that, and sleeps
//	listen         listeners and dials, and the endpoint below them
//	link           connections of endpoints, by events
//	meet           a peer that was met over a socket; over connections with such
//	call           requests and replies, on connections
//	conn           one connection; connlane its messages
package fabric
