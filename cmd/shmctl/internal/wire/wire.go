// Package wire is the network in which tools play, and what they send over it: two interfaces, each
// in a namespace of its own, and payloads that say by themselves whether they are whole.
package wire

import (
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io/fs"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/shmring/shmring/internal/veth"
	"github.com/shmring/shmring/xdp"
	"github.com/shmring/shmring/xdp/device"
	"github.com/shmring/shmring/xdp/endpoint"
)

// Ends are the two ends of a pair, as processes are told of them: by convention the first is the
// device's.
type Ends [2]veth.End

// Ways resolves, at one of the ends, the address of the other one, and nothing else.
func (e Ends) Ways(at int) endpoint.Static {
	local, remote := e[at], e[1-at]
	return endpoint.Static{remote.Addr: xdp.Hop{LocalMAC: [6]byte(local.MAC),
		NextMAC: [6]byte(remote.MAC), Source: local.Addr, MTU: 1500, Generation: 1}}
}

// Listen makes a socket at a path that every user can connect to. One of a dead process goes.
func Listen(network, path string) (*net.UnixListener, error) {
	_ = os.Remove(path)
	l, err := net.ListenUnix(network, &net.UnixAddr{Name: path, Net: network})
	if err != nil {
		return nil, err
	}
	return l, os.Chmod(path, 0o666)
}

// Dial connects to a device process at a path, as soon as there is one.
func Dial(ctx context.Context, path string, r device.Request) (*device.Endpoint, error) {
	for {
		e, err := device.Dial(ctx, path, r)
		if err == nil || ctx.Err() != nil ||
			!errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ECONNREFUSED) {
			return e, err
		}
		time.Sleep(time.Millisecond)
	}
}

// A payload is a sequence number, a checksum over everything else, and a length and bytes that
// follow from the number, so that a byte out of place is noticed even if its neighbours move too.
//
//	0  sequence number
//	8  CRC32C of the payload with this field zero
//	12 length of the payload
//	16 pattern
const (
	payloadMinBytes = 64
	// PayloadMaxBytes is the length of the longest.
	PayloadMaxBytes = 1024
	payloadSumOff   = 8
	payloadLenOff   = 12
	payloadHead     = 16
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// payloadLen spreads lengths over the whole range.
func payloadLen(seq uint64) int {
	return payloadMinBytes + int(Mix(seq)%(PayloadMaxBytes-payloadMinBytes+1))
}

// Mix is a 64-bit finaliser: neighbouring numbers give unrelated values.
func Mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Put writes payload seq to b, which has room for PayloadMaxBytes, and returns its length.
func Put(b []byte, seq uint64) int {
	n := payloadLen(seq)
	le := binary.LittleEndian
	le.PutUint64(b, seq)
	le.PutUint32(b[payloadSumOff:], 0)
	le.PutUint32(b[payloadLenOff:], uint32(n))
	x := Mix(seq + 1)
	i := payloadHead
	for ; i+8 <= n; i += 8 {
		le.PutUint64(b[i:], x)
		x = x*6364136223846793005 + 1442695040888963407
	}
	for ; i < n; i++ {
		b[i] = byte(i)
	}
	le.PutUint32(b[payloadSumOff:], crc32.Checksum(b[:n], castagnoli))
	return n
}

var zeroSum [4]byte

// Check returns the sequence number of a payload and whether every byte is as it was made.
// It reads b where it lies and does not change it.
func Check(b []byte) (seq uint64, ok bool) {
	if len(b) < payloadMinBytes || len(b) > PayloadMaxBytes {
		return 0, false
	}
	le := binary.LittleEndian
	seq = le.Uint64(b)
	sum := crc32.Update(0, castagnoli, b[:payloadSumOff])
	sum = crc32.Update(sum, castagnoli, zeroSum[:])
	sum = crc32.Update(sum, castagnoli, b[payloadSumOff+4:])
	return seq, sum == le.Uint32(b[payloadSumOff:]) &&
		int(le.Uint32(b[payloadLenOff:])) == len(b) && payloadLen(seq) == len(b)
}
