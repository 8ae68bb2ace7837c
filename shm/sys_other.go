//go:build !linux

package shm

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"time"
)

type fileInfo struct {
	dev, ino, nlink uint64
	uid             uint32
	mode            uint32
	size            int64
	mtimeNs         int64
	ctimeNs         int64
}

func (i fileInfo) regular() bool   { return false }
func (i fileInfo) directory() bool { return false }

const noDir = -1

var errSystem = fmt.Errorf("%w on %s: shared memory objects need Linux",
	errors.ErrUnsupported, runtime.GOOS)

func sysOpenDir(int, string) (int, error)              { return -1, errSystem }
func sysMkdir(int, string) error                       { return errSystem }
func sysRmdir(int, string) error                       { return errSystem }
func sysUnlink(int, string) error                      { return errSystem }
func sysRename(int, string, string) error              { return errSystem }
func sysClose(int)                                     {}
func sysReadDir(int, string) ([]os.DirEntry, error)    { return nil, errSystem }
func sysStat(int) (fileInfo, error)                    { return fileInfo{}, errSystem }
func sysStatAt(int, string) (fileInfo, error)          { return fileInfo{}, errSystem }
func sysMemoryFS(int) (bool, int64, error)             { return false, 0, errSystem }
func sysDense(int, uint64) error                       { return errSystem }
func sysOpen(int, string, bool) (int, error)           { return -1, errSystem }
func sysReopen(int, bool) (int, error)                 { return -1, errSystem }
func sysDup(int) (int, error)                          { return -1, errSystem }
func sysTmpfile(int, string) (int, error)              { return -1, errSystem }
func sysMemfd(string, uint64) (int, error)             { return -1, errSystem }
func sysChmod(int, os.FileMode) error                  { return errSystem }
func sysLink(int, int, string) error                   { return errSystem }
func sysResize(int, uint64) error                      { return errSystem }
func sysAllocate(int, uint64, uint64) error            { return errSystem }
func sysReadAt(int, []byte) (int, error)               { return 0, errSystem }
func sysMap(int, uint64, uint64, bool) ([]byte, error) { return nil, errSystem }
func sysUnmap([]byte) error                            { return errSystem }
func sysPrepare([]byte, uint64, bool) error            { return errSystem }
func sysSeal(int, Seals) error                         { return errSystem }
func sysSealed(int, Seals) (int, bool, error)          { return 0, false, errSystem }
func sealBits(Seals) int                               { return 0 }
func sysUnsparse(int, uint64) error                    { return errSystem }
func sysRoom(int, uint64) []room                       { return nil }
func monoNs() int64                                    { return 0 }
func realNs() int64                                    { return time.Now().UnixNano() }
func readSelf() (Owner, bool)                          { return Owner{PID: os.Getpid()}, false }
func processAlive(Owner) (alive, known bool)           { return false, false }
func programOf(string) uint64                          { return 0 }

func watchDeath(Owner, func()) (func(), error) { return nil, errSystem }

func sysBlank([]byte) error { return errSystem }

const errNoData = syscall.EIO
