package device

import (
	"fmt"
	"slices"

	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/xdp"
)

// takePorts takes all of them or none.
func (s *Server) takePorts(a *app, ports []uint16) error {
	for i, port := range ports {
		if err := s.takePort(a, port); err != nil {
			for _, port := range ports[:i] {
				_ = s.dropPort(a, port)
			}
			return err
		}
	}
	return nil
}

func (s *Server) takePort(a *app, port uint16) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := a.account.permits(port); err != nil {
		return err
	}
	if s.ports[port] != nil {
		return fmt.Errorf("%w: %d", ErrPortTaken, port)
	}
	if len(a.ports) >= maxPorts {
		return fmt.Errorf("%w: %d ports, possible are %d", ErrBudget, len(a.ports)+1, maxPorts)
	}
	if err := a.account.book(0, 0, 1); err != nil {
		return err
	}
	// What is not the interface's own stays the kernel's, unless the allow-list says otherwise.
	rule, err := s.program.AddRule(xdp.Rule{UDPPort: port, Local: !a.account.Any}, xdp.Target{})
	if err != nil {
		a.account.unbook(0, 0, 1)
		return err
	}
	crash.At(crash.DevSteered)
	s.ports[port], s.rules[port] = a, rule
	a.ports = append(a.ports, port)
	return nil
}

func (s *Server) dropPort(a *app, port uint16) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(a.ports, port)
	if i < 0 {
		return fmt.Errorf("%w: port %d is not this application's", ErrOptions, port)
	}
	a.ports = slices.Delete(a.ports, i, i+1)
	delete(s.ports, port)
	a.account.unbook(0, 0, 1)
	crash.At(crash.DevUnsteered)
	rule := s.rules[port]
	delete(s.rules, port)
	return s.program.RemoveRule(rule)
}

// assign makes these the ports of an application. Another one may have taken a port that this one
// dropped before the engine is told of the drop: the later owner keeps it, and the former one sends
// from it no more. It runs in the engine.
func (en *engine) assign(a *app, ports []uint16) {
	for port := range a.owns {
		if en.byPort[port] == a {
			en.byPort[port] = nil
		}
	}
	clear(a.owns)
	for _, port := range ports {
		if former := en.byPort[port]; former != nil {
			delete(former.owns, port)
		}
		a.owns[port] = true
		en.byPort[port] = a
	}
}

// own shows the engine which ports an application has. It reports false if the engine has ended.
func (s *Server) own(a *app, first bool) bool {
	s.mu.Lock()
	ports := slices.Clone(a.ports)
	s.mu.Unlock()
	return s.engine.do(func() {
		if first {
			s.engine.attach(a)
		}
		s.engine.assign(a, ports)
	})
}
