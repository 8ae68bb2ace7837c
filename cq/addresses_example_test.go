package cq_test

import (
	"errors"
	"fmt"
	"log"
	"net/netip"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
)

// The owner of an address vector inserts; any other process opens it by name and looks up.
func ExampleCreateAddresses() {
	dir, err := shm.OpenDir("")
	if err != nil {
		log.Fatal(err)
	}
	defer dir.Close()
	peers, err := cq.CreateAddresses(dir, "peers", cq.AddressOptions{Count: 100})
	if err != nil {
		log.Fatal(err)
	}
	defer peers.Close()
	at, err := peers.Insert([][]byte{
		cq.Sockaddr(netip.MustParseAddrPort("10.0.0.1:4711")),
		cq.Sockaddr(netip.MustParseAddrPort("[2001:db8::1]:4711")),
		{1, 2, 3},
	})
	var failed *cq.InsertError
	if errors.As(err, &failed) {
		fmt.Println(failed.Inserted, "inserted, the third is refused:", failed.Errs[2] != nil)
	}

	reader, err := cq.OpenAddresses(dir, "peers") // as another process does
	if err != nil {
		log.Fatal(err)
	}
	defer reader.Close()
	buf := make([]byte, 32)
	n, err := reader.Lookup(at[1], buf)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(reader.StrAddr(buf[:n]))
	fmt.Println(reader.Resolve(buf[:n]))
	// Output:
	// 2 inserted, the third is refused: true
	// [2001:db8::1]:4711
	// 1 true
}
