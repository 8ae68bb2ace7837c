package cq_test

import (
	"errors"
	"fmt"
	"log"
	"net/netip"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
)

// With selective completion operations complete that ask for it. One that fails always says so.
func ExampleNewBinding() {
	q := open("selective")
	defer q.Close()
	w, err := q.Writer()
	if err != nil {
		log.Fatal(err)
	}
	defer w.Close()
	b, err := cq.NewBinding(cq.BindingOptions{Queue: w,
		Flags: cq.FlagTransmit | cq.FlagSelectiveCompletion})
	if err != nil {
		log.Fatal(err)
	}
	defer b.Close()
	send := func(context uint64, op cq.Flags, failed cq.Errno) {
		if err := b.Begin(op); err != nil {
			log.Fatal(err) // cq.ErrFull: accept the operation later
		}
		if failed != 0 {
			err = b.Fail(&cq.ErrorEntry{Context: context, Flags: cq.FlagSend, Err: failed}, op)
		} else {
			err = b.Complete(&cq.Entry{Context: context, Flags: cq.FlagSend}, op)
		}
		if err != nil {
			log.Fatal(err)
		}
	}
	send(1, 0, 0)
	send(2, cq.FlagCompletion, 0)
	send(3, 0, cq.ETrunc)

	buf := make([]cq.Context, 8)
	n, err := cq.Read(q, buf)
	fmt.Println(buf[:n], err)
	_, err = cq.Read(q, buf)
	fmt.Println(errors.Is(err, cq.ErrAvail))
	var failed cq.ErrorEntry
	fmt.Println(q.ReadErr(&failed), failed.Context, failed.Err)
	// Output:
	// [{2}] <nil>
	// true
	// <nil> 3 truncation
}

// Data from somebody who is not in the address vector comes as an error entry, which brings what is
// needed to make its source known.
func ExampleWriter_PostFrom() {
	q := open("sources")
	defer q.Close()
	peers, err := cq.CreateAnonymousAddresses("peers", cq.AddressOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer peers.Close()
	w, err := q.Writer() // or a device process, which opened the vector by name
	if err != nil {
		log.Fatal(err)
	}
	defer w.Close()
	from := cq.Sockaddr(netip.MustParseAddrPort("10.0.0.9:53"))
	for context := range uint64(2) {
		err := w.PostFrom(&cq.Entry{Context: context, Flags: cq.FlagRecv, Len: 100}, from, peers,
			cq.SourceErr)
		if err != nil {
			log.Fatal(err)
		}
		dst, src := make([]cq.Msg, 1), make([]cq.Addr, 1)
		switch _, err = cq.ReadFrom(q, dst, src); {
		case errors.Is(err, cq.ErrAvail):
			e := cq.ErrorEntry{ErrData: make([]byte, cq.ErrDataMaxBytes)}
			if err := q.ReadErr(&e); err != nil {
				log.Fatal(err)
			}
			at, err := peers.Insert([][]byte{e.ErrData})
			fmt.Println(e.Len, "bytes from", peers.StrAddr(e.ErrData), "inserted as", at, err)
		case err == nil:
			fmt.Println(dst[0].Len, "bytes from index", src[0])
		}
	}
	// Output:
	// 100 bytes from 10.0.0.9:53 inserted as [0] <nil>
	// 100 bytes from index 0
}

// Operations use memory of an object by a key, as far as its access allows.
func ExampleRegisterMemory() {
	const buffers shm.SectionKind = 0x1000
	obj, err := shm.CreateMemfd(shm.Spec{Kind: shm.KindRegion,
		Sections: []shm.Section{{Kind: buffers, Length: 1 << 16}}}, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer obj.Close()
	_, s, err := obj.Section(buffers, 0)
	if err != nil {
		log.Fatal(err)
	}
	region, err := cq.RegisterMemory(obj, cq.MemoryOptions{Offset: s.Offset + 4096, Length: 4096,
		Access: cq.FlagRecv | cq.FlagRemoteWrite})
	if err != nil {
		log.Fatal(err)
	}
	defer region.Close()
	incoming, err := region.View(0, 5, cq.FlagRemoteWrite)
	if err != nil {
		log.Fatal(err)
	}
	copy(incoming, "hello")

	mine, err := region.View(0, 5, cq.FlagRecv)
	fmt.Println(string(mine), err, region.Key() != cq.KeyNotAvail)
	// Output: hello <nil> true
}
