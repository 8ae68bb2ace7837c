package futex

import (
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/spin"
)

func threads(t *testing.T) int {
	t.Helper()
	names, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}

// TestSharedThreads lets many goroutines sleep, some on one word and some on words of their own:
// they take few threads, each is woken by a change of its word, and none by another's for good.
func TestSharedThreads(t *testing.T) {
	const sleepers, words = 1000, 300
	var word [words]atomic.Uint32
	var awake [words]atomic.Int32
	before := threads(t)
	var all sync.WaitGroup
	for i := range sleepers {
		at := i % words
		all.Go(func() {
			for word[at].Load() == 0 {
				Wait(&word[at], 0, 0)
			}
			awake[at].Add(1)
		})
	}
	for range 60_000 {
		if n := waiters.n.Load(); n == sleepers-soloWaiters {
			break
		}
		time.Sleep(time.Millisecond)
	}
	// A thread for each perThread, and some that the runtime keeps for system calls.
	if n, most := threads(t)-before, soloWaiters+2*(sleepers/perThread+1)+16; n > most {
		t.Errorf("%d sleepers take %d threads, want at most %d", sleepers, n, most)
	}
	for at := range word {
		if n := awake[at].Load(); n != 0 {
			t.Fatalf("word %d: %d awake too early", at, n)
		}
		word[at].Store(1)
		WakeAll(&word[at])
		if at == words/2 {
			for awake[0].Load() < sleepers/words {
				time.Sleep(time.Millisecond)
			}
		}
	}
	all.Wait()
	for range 60_000 {
		waiters.mu.Lock()
		n := len(waiters.threads)
		waiters.mu.Unlock()
		if n == 0 {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Error("a thread without sleepers lives on")
}

// TestSharedDeadline: a deadline ends a wait in a shared thread, which forgets the word.
func TestSharedDeadline(t *testing.T) {
	var word, other atomic.Uint32
	stay := make(chan struct{})
	go func() {
		waitShared(&other, 0, 0)
		close(stay)
	}()
	for range 20 {
		begin := spin.Now()
		waitShared(&word, 0, begin+int64(2*time.Millisecond))
		if spin.Now()-begin < int64(2*time.Millisecond) {
			t.Error("woken before its deadline")
		}
	}
	waitShared(&word, 1, 0) // it has changed already
	other.Store(1)
	WakeAll(&other)
	<-stay
}

// TestSharedUnknown: where the kernel has no such call everybody waits alone.
func TestSharedUnknown(t *testing.T) {
	var word atomic.Uint32
	there, comes := &waiter{word: &word, woke: make(chan struct{}, 1)},
		&waiter{word: &word, woke: make(chan struct{}, 1)}
	waiters.Join(there)
	noSharing.Store(true)
	defer noSharing.Store(false)
	waiters.Join(comes)
	<-there.woke
	<-comes.woke
	soloNow.Add(soloWaiters)
	defer soloNow.Add(-soloWaiters)
	Wait(&word, 0, spin.Now()+int64(time.Millisecond))
}

// TestWaitManyRefused: where a filter of system calls took futex_waitv away who sleeps on several
// words looks now and then, and not all the time.
func TestWaitManyRefused(t *testing.T) {
	t.Parallel()
	if got := shmtest.Start(t, shmtest.Child(t, "refused")).Stop(t); got != "rests" {
		t.Error(got)
	}
}

func childRefused() {
	shmtest.Need(HasWaitMany())
	var words [2]atomic.Uint32
	for _, errno := range []syscall.Errno{syscall.EPERM, syscall.ENOSYS} {
		shmtest.Need(shmtest.Forbid(unix.SYS_FUTEX_WAITV, errno))
		const times = 20
		begin := spin.Now()
		for range times {
			err := WaitMany([]Watched{{Word: &words[0]}, {Word: &words[1]}}, 0)
			if err != errno {
				shmtest.Say("%v", err)
			}
		}
		// A signal may end some of them.
		if took := time.Duration(spin.Now() - begin); took < times*lookEvery/2 {
			shmtest.Say("%d sleeps in %v", times, took)
		}
	}
	shmtest.Say("rests")
}

func TestMain(m *testing.M) {
	shmtest.Main(m, map[string]func(){"refused": childRefused})
}
