package ctl

// OnCopied has a function called whenever an entry has been copied out of a queue.
func (m *Monitor) OnCopied(f func()) { m.copied = f }

// InARow has a check look again at once. Nothing of what it looks at may change.
func (o CheckOptions) InARow() CheckOptions {
	o.pause = 1
	return o
}
