// Package torture kills processes of the library at any moment and proves that nothing is lost.
//
// A supervisor starts real processes in a directory of their own and kills one after the other
// with SIGKILL, at random moments or, in a program built with the tag shmring_steps, at a chosen
// step (see package crash). Each is started again at once. Now and then one is stopped for longer
// than it takes anybody to notice, and continued: nobody may take it for dead.
//
//	writer   attaches to the queue, posts in every way there is, closes, attaches again
//	reader   opens the queue, or waits as successor of the one that has it; peeks, releases,
//	         leaves it now and then of its own will
//	event-writer, event-reader
//	         the same with an event queue, whose events have payloads or are errors
//	set-writer, set-reader
//	         several queues, which one reader waits for by wait set, by descriptor, by channel, or
//	         by poll set
//	counter  adds to a counter and waits for it
//	vector-owner, vector-user
//	         change an address vector and take it over; look things up in it
//	churner  creates, uses, destroys and collects small queues with names that its like contend
//	         for, and meets them over sockets: those who clean up are killed too
//	others-  of one user reads at a place where others succeed it, each with a queue of its own;
//	reader   waits alone, as one of several goroutines, by descriptor, by wait set, or on a channel;
//	         dies, or detaches now and then
//	others-  of another user follows those readers, and takes to each what the former one left
//	writer
//	others-event-reader, others-event-writer
//	         the same two with event queues; the reader may have the library call it, too
//	endpoint sends messages of all lengths to others of its role, and receives theirs, by package
//	         fabric, from its pool and lent, with levels and fences; reads, writes and adds to their
//	         memory, which a file has if it is to last; listens, echoes, and dials others; answers
//	         and asks by events; sends to groups
//	device   owns one end of a veth pair; it takes part, with the next two, if it is asked for
//	wire     the other end: answers what comes, and floods
//	app, app2
//	         applications of two other users, which send and receive through the device process
//
// # Roles
//
// A kind of process is a role: a function that returns a [role], and a line in the table of
// role_linux.go. Those who write and read in pairs are lines of a table themselves, that of sites
// in sites_linux.go: with names or between users, with a kind of object and the ways in which its
// reader waits. The supervisor knows of roles only what stands there. The process itself is
// role.run, a method of child that works until c.ledger.phase() is no longer phaseRun, then closes
// everything and returns. It may use
//
//	c.dir      the directory of the run with named objects; nil with a uid of its own
//	c.rnd      choices that the seed replays
//	c.words    words of the ledger that are the role's (role.words); those of others by region
//	c.Share    directories that the role's prepare made with s.shareDir, to meet at
//	c.Step     the label at which it is to die, "" if at none: it may hurry there
//	c.tell     kindLost, kindHung and the like: what it found, each of which fails the run
//	c.has      what it surely has, or shares: whoever shares it must tell its death (role.tells)
//	c.owns     a word that names who has what nobody else may get while it is stopped
//	c.bound    it is told of deaths from now on, until c.unbound
//	c.notice   the number of a process whose death it was told of, and how it was told
//
// Numbers that rise often stand in the ledger, and role.sum takes them into the report; what is
// found is told. Roles marked as asked take part only if --roles names them.
//
// # What is provable
//
// Nothing of the library decides what is right. Beside the queues lies a ledger, a file that all
// map; what a process stored there before it was killed stays. A writer's time with one lane is a
// session; for each session the ledger has three words:
//
//	intent     the writer stores it after it has filled slots and before it commits them
//	published  the writer stores it after the commit returned
//	seen       the reader stores it after it looked at an entry and before it releases it
//
// Entries are numbered from 1 in each session and say whose they are, with a checksum. Hence,
// at every entry:
//
//   - number > intent: it was never committed, "unpublished";
//   - number = seen+1: it is read, now; it may be marked, as it may have been handed out to
//     a reader that died before it looked;
//   - number <= seen: the reader that saw it died, or left, before it released it; it must be
//     marked redelivered, else it is a "duplicate";
//   - number > seen+1: those between are "lost", or the order of the lane is broken.
//
// A writer that dies between the commit and the store of published leaves entries in doubt: at the
// end published <= seen <= intent must hold for every session, and no more can be said. With steps
// more can: whoever died before the tail was stored has published nothing more, and whoever died
// behind it one entry more at least. That seen and release are two steps only makes entries come
// twice, never not at all.
//
// The place of a writer stays empty until everything that it published is seen, though it cannot
// ring any more: its successor would, and cover up that nobody looked. After some deaths all
// writers keep still and nobody is killed until everything is seen, for the same reason.
//
// Datagrams may be lost by the kernel between. What is proved around a device process is that each
// send that it took ends once, with its completion or, when the process has died, with ECANCELED;
// that what arrives is whole and comes once; that its applications have their event; that in the
// device process packets and frames add up at all times (what arrived is delivered, dropped,
// unclaimed or malformed), and that nothing of an application is left when it is gone.
//
// What a run cannot show is a window of a few nanoseconds between two processors, as that of a
// reader that does not look again after it parked, or does not pay for the order of stores: later
// posts and successors close it before anybody notices. That is for package model,
// which tries every order.
//
// What one endpoint sends to another is numbered too. The ledger has a bit for each message that
// completed, and one for each that came: a message comes once and whole, in the order of its kind,
// each operation ends once, a failure has a reason in who lives, and what completed is seen by a
// receiver that lives, at the latest in a calm, when all sends have ended. What is written to a
// connection comes back, or who was dialed has died or closed the listener.
// Who is told that a message has its receive finds it seen, or its receiver with a receive that
// can have it. What is behind a fence ends after what is before it. Memory of a message changes
// when its send has ended, and no receiver notices. A word of each endpoint is at least what others
// added that completed, at most what they began to add; and what one writes there is what it reads,
// and never by a key that was revoked. What one wrote to last is in the file of an endpoint that
// has died, and in the memory of the next one.
//
// A counter's value lies between what its processes noted before they added and after; an address
// vector has what the ledger says whenever the ledger says it, before and after a look.
//
// After deaths at steps all objects that have a name are checked as shmctl check does it, before
// anybody goes on for the dead one: an invariant that does not hold then is "broken".
//
// Queues that are met over sockets are of both kinds of trust; the one that has
// a name is the same user's. What is posted to them is checked for order and content only, as they
// end with their reader.
//
// Between users memory has no name, so what was published is gone when both the writer and the
// reader that had its lane are dead: that much may miss at the end, in the order of the lane, and
// is counted as "gone_with_both". A writer that lives takes all of it to the next reader, and one
// that ends by itself waits until everything is seen.
//
// Whoever attaches or dies wakes the reader, and would cover up that nobody rang: in a calm, which
// all writers with a ledger have now and then, none of them posts or is killed until everything is
// seen. A reader that could run for 20 seconds meanwhile, and saw no more, makes it "hung".
//
// Counters and address vectors have words that all who use them write, so there are none between
// users, see [cq.CrossUser].
//
// A writer stops posting now and then until everything is read; so a wake that was lost is not
// covered up by the next. Whoever waits for that, for room, or for an end, longer than a minute
// is "hung". A death of which a survivor does not know after five seconds is "unnoticed", whatever
// others know; those count in which the survivor could run, for a machine that stands still lets
// nobody know. Each one owes it that was bound before the death and stays so: the watcher and
// writers of a reader, a reader of writers, applications of a device process, and all of those
// between users. Who is about to close what it is bound to tells first what it owes, and is not
// killed from outside while it is late, else a library that tells only some of them would not be
// found. The times of survivors that came later, or were stopped meanwhile, are counted apart.
// Deaths at event queues of one user, counters and address vectors are not demanded. At the
// end all is closed and collected; what then stands in the directory, or is still open or mapped in
// a process that survived, is "leaked".
//
// The seed replays the choices: which process, how, when after the last. It does not replay the
// schedule of the processes, and with that what a kill hits. At which step a process is to die is
// drawn too, with weights by how often steps have killed: more often where one lags behind, so that
// with steps the choices are the same as long as the deaths before are.
package torture
