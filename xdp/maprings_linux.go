package xdp

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/xskernel"
)

// The offsets of four rings, with those of their flags. Kernels before 5.4 write less.
const mmapOffsetsBytes = 128

// mapRings sizes the four rings, maps them and lays the ends of core and pool over them.
func (s *Socket) mapRings(o Options) error {
	err := s.sizeRing(unix.XDP_UMEM_FILL_RING, o.FillEntries)
	if err == nil {
		err = s.sizeRing(unix.XDP_UMEM_COMPLETION_RING, o.CompEntries)
	}
	if err == nil {
		err = s.mapOwnRings(o)
	}
	if err != nil {
		return err
	}
	off, err := s.ringOffsets()
	if err != nil {
		return err
	}
	pool := &s.pool.maps
	fill, fillSlots, err := mapRing[uint64](s, pool, unix.XDP_UMEM_PGOFF_FILL_RING, off.Fr,
		o.FillEntries)
	if err != nil {
		return err
	}
	comp, compSlots, err := mapRing[uint64](s, pool, unix.XDP_UMEM_PGOFF_COMPLETION_RING, off.Cr,
		o.CompEntries)
	if err != nil {
		return err
	}
	s.fill, s.comp = newProducer(fill, fillSlots), newConsumer(comp, compSlots)
	return nil
}

// mapOwnRings does it for the receive and the transmit ring, which no two sockets share.
func (s *Socket) mapOwnRings(o Options) error {
	err := s.sizeRing(unix.XDP_RX_RING, o.RxEntries)
	if err == nil {
		err = s.sizeRing(unix.XDP_TX_RING, o.TxEntries)
	}
	if err != nil {
		return err
	}
	off, err := s.ringOffsets()
	if err != nil {
		return err
	}
	rx, rxSlots, err := mapRing[xskernel.Desc](s, &s.maps, unix.XDP_PGOFF_RX_RING, off.Rx, o.RxEntries)
	if err != nil {
		return err
	}
	tx, txSlots, err := mapRing[xskernel.Desc](s, &s.maps, unix.XDP_PGOFF_TX_RING, off.Tx, o.TxEntries)
	if err != nil {
		return err
	}
	s.rx, s.tx = newConsumer(rx, rxSlots), newProducer(tx, txSlots)
	return nil
}

func (s *Socket) sizeRing(option int, entries uint32) error {
	if err := unix.SetsockoptInt(s.fd, unix.SOL_XDP, option, int(entries)); err != nil {
		return s.error("size ring of", fmt.Errorf("%d entries: %w", entries, err),
			"take smaller rings")
	}
	return nil
}

func (s *Socket) ringOffsets() (off unix.XDPMmapOffsets, err error) {
	n, err := getXDPOption(s.fd, unix.XDP_MMAP_OFFSETS, &off)
	if err != nil {
		return off, s.error("read ring offsets of", err, "")
	}
	if n != mmapOffsetsBytes {
		return off, s.error("read ring offsets of", fmt.Errorf("%d bytes, want %d", n,
			mmapOffsetsBytes), "a kernel of 5.4 or later is needed")
	}
	return off, nil
}

// mapRing maps one ring and keeps the mapping in maps.
func mapRing[E uint64 | xskernel.Desc](s *Socket, maps *[][]byte, pgoff int64,
	off unix.XDPRingOffset,
	entries uint32) (ringWords, []E, error) {
	const saneBytes = 1 << 20 // of what precedes the entries
	if off.Desc > saneBytes {
		return ringWords{}, nil, s.error("map ring of", fmt.Errorf("entries at %d", off.Desc), "")
	}
	size := int(off.Desc) + int(entries)*entryBytes[E]()
	mem, err := unix.Mmap(s.fd, pgoff, size, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return ringWords{}, nil, s.error("map ring of", err, "")
	}
	*maps = append(*maps, mem)
	w, slots, err := ringOverlay[E](mem, off, entries)
	if err != nil {
		return ringWords{}, nil, s.error("map ring of", err, "")
	}
	return w, slots, nil
}
