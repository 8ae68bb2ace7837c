package port

import (
	"slices"

	"github.com/shmring/shmring/cq"
)

// Redeliver makes a port that was not driven yet do these commands first, as if a process before
// this one had looked at them and had been killed.
func Redeliver(p *Port, commands []cq.Entry) {
	marked := slices.Clone(commands)
	for i := range marked {
		marked[i].Flags |= cq.FlagRedelivered
	}
	p.took(marked, true)
}
