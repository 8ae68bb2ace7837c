package torture

import (
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

const (
	writers     = 4
	maxLanes    = 8
	maxSessions = 1 << 16 // of one writer
)

// Words of the ledger. All are atomic; beside each is who stores it.
const (
	wordPhase       = iota // the supervisor: what everybody is to do
	wordHolder             // reader: who has the queue, 0 while nobody surely does
	wordAdopted            // reader: monotonic time at which it got it
	wordAdoptions          // reader: how often that happened
	wordEnded              // reader: the queue is destroyed
	wordRedelivered        // reader, as the rest
	wordDuplicate
	wordLost
	wordUnpublished
	wordLaneOwner                            // writers: what session has the lane, maxLanes words
	wordSessions  = wordLaneOwner + maxLanes // writers: sessions so far, a word each
	wordLane      = wordSessions + writers   // writers: lane that it surely has, + 1, or 0
	wordHush      = 63                       // the supervisor: nobody is to post or attach
	wordPassed    = 64                       // everybody: how often each step was passed, with steps
	ledgerHead    = 256
	sessionWords  = 3
)

// Phases, in order.
const (
	phaseRun   = iota
	phaseStop  // writers and churners close and end
	phaseDrain // readers read what is there, destroy the queue and end
)

type ledger struct {
	f     *os.File
	mem   []byte
	words []atomic.Uint64
}

const ledgerBytes = (ledgerHead + writers*maxSessions*sessionWords) * 8

// openLedger maps the file, which is sparse.
func openLedger(path string) (*ledger, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err = f.Truncate(ledgerBytes); err == nil {
		var mem []byte
		mem, err = unix.Mmap(int(f.Fd()), 0, ledgerBytes, unix.PROT_READ|unix.PROT_WRITE,
			unix.MAP_SHARED)
		if err == nil {
			return &ledger{f: f, mem: mem, words: wordsOver(mem)}, nil
		}
	}
	_ = f.Close()
	return nil, err
}

func (l *ledger) close() {
	_ = unix.Munmap(l.mem)
	_ = l.f.Close()
}

func (l *ledger) word(i int) *atomic.Uint64 { return &l.words[i] }

func (l *ledger) phase() uint64 { return l.words[wordPhase].Load() }

// session is what is known of one time of a writer with a lane.
type session struct{ intent, published, seen *atomic.Uint64 }

func (l *ledger) session(writer int, n uint64) session {
	at := ledgerHead + (writer*maxSessions+int(n))*sessionWords
	return session{&l.words[at], &l.words[at+1], &l.words[at+2]}
}

// name packs whose session it is, as entries carry it; 0 is nobody's.
func sessionName(writer int, n uint64) uint64 { return uint64(writer+1)<<32 | n }

func splitSession(name uint64) (writer int, n uint64, ok bool) {
	writer, n = int(name>>32)-1, name&(1<<32-1)
	return writer, n, writer >= 0 && writer < writers && n > 0 && n < maxSessions
}

// mix makes the checksum of an entry.
func mix(name, number uint64) uint64 {
	x := name*0x9e3779b97f4a7c15 ^ number
	x ^= x >> 29
	x *= 0xbf58476d1ce4e5b9
	return x ^ x>>32
}
