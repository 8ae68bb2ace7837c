package shm

import (
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
)

// TestBusyReleased: whoever has the lock of an object that was left is not its last owner, whose
// number may be that of a stranger.
func TestBusyReleased(t *testing.T) {
	d := openTestDir(t)
	made, err := d.Create("a", specFor(""), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer made.Close()
	if err := made.Release(); err != nil {
		t.Fatal(err)
	}
	holder, late := openObject(t, d, "a", ReadWrite), openObject(t, d, "a", ReadWrite)
	if err := holder.Hold(); err != nil {
		t.Fatal(err)
	}
	var busy *BusyError
	err = late.Claim(nil)
	if !errors.As(err, &busy) || !busy.Released || busy.Gone || busy.PID != 0 ||
		!errors.Is(err, syscall.EBUSY) || strings.Contains(err.Error(), "stop it") {
		t.Errorf("held by who removes it: %+v: %v", busy, err)
	}
	_, err = late.Seats(make([]byte, SeatBytes)).Take()
	if !errors.As(err, &busy) || !busy.Released || busy.PID != 0 {
		t.Errorf("no seat: %+v: %v", busy, err)
	}
	if err := holder.Release(); err != nil {
		t.Fatal(err)
	}
	if err := holder.Claim(nil); err != nil {
		t.Fatal(err)
	}
	if err := late.Claim(nil); !errors.As(err, &busy) || busy.Released || busy.PID != os.Getpid() {
		t.Errorf("owned again: %+v: %v", busy, err)
	}
	if err := holder.Unlink(); err != nil {
		t.Fatal(err)
	}
}
