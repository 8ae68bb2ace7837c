package xdp_test

import (
	"encoding/binary"
	"hash/crc32"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/xdptest"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp"
)

// TestCheckUMEM: a UMEM is what it says, or a check says that it is not.
func TestCheckUMEM(t *testing.T) {
	u := xdptest.NewUMEM(t, xdp.UMEMOptions{Frames: 2})
	obj := u.Region().Object()
	if got := xdp.Check(obj); len(got) > 0 {
		t.Fatalf("%+v", got)
	}
	image := append([]byte{}, obj.Bytes()...)
	binary.LittleEndian.PutUint64(image[0x100:], 3) // frames
	binary.LittleEndian.PutUint32(image[0x980:], crc32.Checksum(image[:0x980],
		crc32.MakeTable(crc32.Castagnoli)))
	fd, err := unix.MemfdCreate("umem", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if _, err := unix.Pwrite(fd, image, 0); err != nil {
		t.Fatal(err)
	}
	bad, err := shm.OpenPathFD(fd, "umem")
	if err != nil {
		t.Fatal(err)
	}
	defer bad.Close()
	if got := xdp.Check(bad); len(got) != 1 || got[0].Invariant != "umem.geometry" ||
		got[0].Offset != 0x100 {
		t.Errorf("%+v", got)
	}
}
