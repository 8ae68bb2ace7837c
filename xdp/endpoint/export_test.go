package endpoint

import "github.com/shmring/shmring/internal/netif"

// LinkEvent plays the watcher.
func (e *Endpoint) LinkEvent(l netif.Event) bool { return e.linkEvent(l) }
