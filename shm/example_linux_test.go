package shm_test

import (
	"fmt"
	"log"

	"github.com/shmring/shmring/shm"
)

// One process makes an object, another one opens it and reads the same memory.
func Example() {
	d, err := shm.OpenDir("")
	if err != nil {
		log.Fatal(err)
	}
	defer d.Close()

	const words shm.SectionKind = 1
	spec := shm.Spec{Kind: shm.KindRegion, Sections: []shm.Section{{Kind: words, Length: 4096}}}
	owner, err := d.Create("greeting", spec, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer owner.Close()
	defer owner.Unlink()
	mine, _, err := owner.Section(words, 0)
	if err != nil {
		log.Fatal(err)
	}
	copy(mine, "hello")

	peer, err := d.Open("greeting", shm.ReadOnly) // usually in another process
	if err != nil {
		log.Fatal(err)
	}
	defer peer.Close()
	theirs, _, err := peer.Section(words, 0)
	if err != nil {
		log.Fatal(err)
	}
	life, err := peer.Life()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s, owner %v\n", theirs[:5], life)
	// Output: hello, owner alive
}
