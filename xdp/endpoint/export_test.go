package endpoint

import (
	"github.com/shmring/shmring/internal/drive"
	"github.com/shmring/shmring/internal/netif"
)

// LinkEvent plays the watcher.
func (e *Endpoint) LinkEvent(l netif.Event) bool { return e.linkEvent(l) }

// Driver is the endpoint as the loop of Run has it.
func (e *Endpoint) Driver() drive.Device { return run{e} }
