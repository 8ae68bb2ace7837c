package torture

import (
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Words at the beginning of the ledger. All are atomic; beside each is who stores it. The words of
// the roles follow, see ledger.region.
const (
	wordPhase  = iota     // the supervisor: what everybody is to do
	wordHush              // the supervisor: nobody is to post or attach to the queue with a name
	wordPassed = 64       // everybody: how often each step was passed, with steps
	wordDeath  = 64 + 256 // everybody: when the process of a place died; the first to know stores it
	// The process of a place: for how many nanoseconds it could run; 0 if it has not begun.
	wordLived = wordDeath + maxPlaces
	// The process of a place: since when it is surely told of the deaths that its role has to
	// tell, and has surely what others mourn; 0 while it is not, or has not.
	wordBound = wordLived + maxPlaces
	// The supervisor: the process of a place, as [process.word] has it, while it owes notices.
	wordOwes   = wordBound + maxPlaces
	ledgerHead = wordOwes + maxPlaces
)

// maxPlaces bounds how many processes live at once.
const maxPlaces = 192

// Phases, in order.
const (
	phaseRun   = iota
	phaseStop  // all that do not drain close and end
	phaseDrain // those that drain read what is there, destroy it and end
)

type ledger struct {
	f     *os.File
	mem   []byte
	words []atomic.Uint64
}

// makeLedger makes the file, which is sparse.
func makeLedger(path string) (*ledger, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err = f.Truncate(int64(ledgerWords()) * 8); err == nil {
		var l *ledger
		if l, err = mapLedger(f); err == nil {
			return l, nil
		}
	}
	_ = f.Close()
	return nil, err
}

// mapLedger maps it; the ledger owns the file then.
func mapLedger(f *os.File) (*ledger, error) {
	mem, err := unix.Mmap(int(f.Fd()), 0, ledgerWords()*8, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	return &ledger{f: f, mem: mem, words: wordsOver(mem)}, nil
}

func (l *ledger) close() {
	_ = unix.Munmap(l.mem)
	_ = l.f.Close()
}

func (l *ledger) word(i int) *atomic.Uint64 { return &l.words[i] }

func (l *ledger) phase() uint64 { return l.words[wordPhase].Load() }

// session is what is known of one time of a writer with a lane. home is, between users, the reader
// that has the lane, as far as the writer came to say so.
type session struct{ intent, published, seen, home *atomic.Uint64 }

const sessionWords = 4

// sessionAt returns the n-th session in words that hold nothing else.
func sessionAt(words []atomic.Uint64, n int) session {
	at := n * sessionWords
	return session{&words[at], &words[at+1], &words[at+2], &words[at+3]}
}

// mix makes the checksum of an entry.
func mix(name, number uint64) uint64 {
	x := name*0x9e3779b97f4a7c15 ^ number
	x ^= x >> 29
	x *= 0xbf58476d1ce4e5b9
	return x ^ x>>32
}
