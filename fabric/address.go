package fabric

import (
	"encoding/binary"
	"fmt"

	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/shm"
)

// Address names one endpoint, from Open to Close: who opens the name again has another one. It may
// be sent to other processes by [Address.Append] and [ParseAddress].
type Address struct {
	Outbox     uint64 // number of its outbox, by which it is found
	UUID       shm.UUID
	Generation uint64
}

// AddressBytes is the length of an address in bytes: version u32, zero u32, outbox u64, uuid 16,
// generation u64, little-endian.
const AddressBytes = 40

const addressVersion = 1

// Append appends the bytes of an address.
func (a Address) Append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(b, addressVersion)
	b = binary.LittleEndian.AppendUint64(b, a.Outbox)
	b = append(b, a.UUID[:]...)
	return binary.LittleEndian.AppendUint64(b, a.Generation)
}

// ParseAddress is the reverse of Append. What is no address of this version is [ErrAddress].
func ParseAddress(b []byte) (a Address, err error) {
	if len(b) != AddressBytes || binary.LittleEndian.Uint64(b) != addressVersion {
		return a, fault("parse", "address", ErrAddress)
	}
	a.Outbox = binary.LittleEndian.Uint64(b[8:])
	a.UUID = shm.UUID(b[16:32])
	a.Generation = binary.LittleEndian.Uint64(b[32:])
	if a.Outbox == 0 || a.Outbox != kind.FabricOutboxID(a.Outbox) {
		return Address{}, fault("parse", "address", ErrAddress)
	}
	return a, nil
}

// String returns the number of the outbox and the uuid.
func (a Address) String() string {
	return fmt.Sprintf("%s/%v", kind.FabricOutboxName(a.Outbox), a.UUID)
}
