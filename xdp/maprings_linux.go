package xdp

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// The offsets of four rings, with those of their flags. Kernels before 5.4 write less.
const mmapOffsetsBytes = 128

// mapRings sizes the four rings, maps them and lays the core's ends over them.
func (s *Socket) mapRings(o Options) error {
	for _, r := range [...]struct {
		option  int
		entries uint32
	}{
		{unix.XDP_UMEM_FILL_RING, o.FillEntries},
		{unix.XDP_UMEM_COMPLETION_RING, o.CompEntries},
		{unix.XDP_RX_RING, o.RxEntries},
		{unix.XDP_TX_RING, o.TxEntries},
	} {
		if err := unix.SetsockoptInt(s.fd, unix.SOL_XDP, r.option, int(r.entries)); err != nil {
			return s.error("size ring of", fmt.Errorf("%d entries: %w", r.entries, err),
				"take smaller rings")
		}
	}
	var off unix.XDPMmapOffsets
	n, err := getXDPOption(s.fd, unix.XDP_MMAP_OFFSETS, &off)
	if err != nil {
		return s.error("read ring offsets of", err, "")
	}
	if n != mmapOffsetsBytes {
		return s.error("read ring offsets of", fmt.Errorf("%d bytes, want %d", n,
			mmapOffsetsBytes), "a kernel of 5.4 or later is needed")
	}
	fill, fillSlots, err := mapRing[uint64](s, unix.XDP_UMEM_PGOFF_FILL_RING, off.Fr, o.FillEntries)
	if err != nil {
		return err
	}
	comp, compSlots, err := mapRing[uint64](s, unix.XDP_UMEM_PGOFF_COMPLETION_RING, off.Cr,
		o.CompEntries)
	if err != nil {
		return err
	}
	rx, rxSlots, err := mapRing[Desc](s, unix.XDP_PGOFF_RX_RING, off.Rx, o.RxEntries)
	if err != nil {
		return err
	}
	tx, txSlots, err := mapRing[Desc](s, unix.XDP_PGOFF_TX_RING, off.Tx, o.TxEntries)
	if err != nil {
		return err
	}
	s.fill, s.comp = newProducer(fill, fillSlots), newConsumer(comp, compSlots)
	s.rx, s.tx = newConsumer(rx, rxSlots), newProducer(tx, txSlots)
	return nil
}

func mapRing[E uint64 | Desc](s *Socket, pgoff int64, off unix.XDPRingOffset, entries uint32) (
	ringWords, []E, error) {
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
	s.maps = append(s.maps, mem)
	w, slots, err := ringOverlay[E](mem, off, entries)
	if err != nil {
		return ringWords{}, nil, s.error("map ring of", err, "")
	}
	return w, slots, nil
}
