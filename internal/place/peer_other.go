//go:build !linux

package place

import (
	"errors"
	"os"

	"github.com/shmring/shmring/shm"
)

func (p *Peer) identify(int) error { return errors.ErrUnsupported }
func waitExit(*os.File) bool       { return false }
func waitHangUp(*os.File) bool     { return false }
func stopWaiting(*os.File)         {}
func peerUser(int) (int, error)    { return -1, errors.ErrUnsupported }
func (p *Peer) mute([]byte, func([]byte) bool) (int, error) {
	return 0, errors.ErrUnsupported
}
func descriptorOf(shm.Owner, int) (int, error) {
	return -1, errors.ErrUnsupported
}

func openFIFO(*shm.Dir, bool) (int, error) { return -1, errors.ErrUnsupported }
