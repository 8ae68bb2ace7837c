package ctl

// OnCopied has a function called whenever an entry has been copied out of a queue.
func (m *Monitor) OnCopied(f func()) { m.copied = f }
