package endpoint

import "github.com/shmring/shmring/cq"

// InjectMsg is Inject of a message, of which it takes the payload and the addresses. FlagMore is
// the only flag that counts: the kernel is shown the packet by Flush then, or with the next one.
func (e *Endpoint) InjectMsg(m *Msg) error {
	e.lock()
	err := e.post(m, m.Flags&cq.FlagMore|cq.FlagInjectCall)
	if m.Flags&cq.FlagMore == 0 {
		e.push()
	}
	e.unlock()
	return err
}
