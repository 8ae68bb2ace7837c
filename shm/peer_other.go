//go:build !linux

package shm

import "os"

func (p *Peer) identify(int) error       { return errSystem }
func (p *Peer) mute([]byte) (int, error) { return 0, errSystem }
func waitExit(*os.File) bool             { return false }
func waitHangUp(*os.File) bool           { return false }
func stopWaiting(*os.File)               {}
func sysUnsparse(int, uint64) error      { return errSystem }
