package cq_test

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/inspect"
	"github.com/shmring/shmring/internal/spin"
	"github.com/shmring/shmring/shm"
)

// TestCheckHeldYoung: an object may be unfinished as long as its file is young. What it says itself
// of its age, or that nobody finished it, is no excuse.
func TestCheckHeldYoung(t *testing.T) {
	obj, err := shm.CreateMemfd(shm.Spec{Kind: shm.KindUMEM, Name: "umem",
		Sections: []shm.Section{{Kind: 1, Length: 4096}}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer obj.Close()
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", obj.FD()), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	page := obj.Bytes()[:4096]
	now := time.Duration(0)
	check := func(what string, created, born time.Duration, want string) {
		t.Helper()
		for {
			began := time.Now()
			binary.LittleEndian.PutUint64(page[0x78:], uint64(spin.Now()+int64(created)))
			binary.LittleEndian.PutUint32(page[0x980:], crc32.Checksum(page[:0x980],
				crc32.MakeTable(crc32.Castagnoli)))
			all, err := inspect.CheckHeld([]inspect.Held{{Name: "held", Path: "held", FD: fd, Memfd: true,
				Born: time.Now().Add(born)}}, nil)
			if time.Since(began) > time.Second/2 { // it is not young any more
				continue
			}
			if err != nil || len(all) != 1 {
				t.Fatalf("%s: %+v, %v", what, all, err)
			}
			got := ""
			for _, v := range all[0].Violations {
				got += v.Invariant
			}
			if got != want || all[0].Undecided != (want == "") {
				t.Errorf("%s: undecided %v, %+v, want %s", what, all[0].Undecided, all[0].Violations,
					want)
			}
			return
		}
	}
	check("just made", now, now, "")
	check("two seconds old", -2*time.Second, now, "object.seals")
	check("yet to be made", time.Hour, now, "object.seals")
	check("an old file", now, -time.Hour, "object.seals")
	check("a file of tomorrow", now, 24*time.Hour, "object.seals")

	binary.LittleEndian.PutUint64(page[0xa00:], uint64(shm.ObjectNew))
	check("being made", now, now, "")
	check("being made for an hour", now, -time.Hour, "header.state")
	check("being made tomorrow", now, 24*time.Hour, "header.state")
	binary.LittleEndian.PutUint64(page[0xa00:], uint64(shm.ObjectReady))
}
