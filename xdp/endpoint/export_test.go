package endpoint

import "github.com/shmring/shmring/internal/link"

// LinkEvent plays the watcher.
func (e *Endpoint) LinkEvent(l link.Event) bool { return e.linkEvent(l) }
