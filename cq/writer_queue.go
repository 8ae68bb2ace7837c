package cq

import "github.com/shmring/shmring/shm"

// Queue returns the name of the queue that the writer posts to, and which one of that name it is.
// It is for those who show what is bound to what, while the writer is open.
func (w *Writer) Queue() (name string, id shm.UUID) {
	if w.reader == nil {
		return w.name, shm.UUID{}
	}
	return w.name, w.reader.Header().UUID
}
