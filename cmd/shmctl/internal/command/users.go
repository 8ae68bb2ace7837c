package command

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/shmring/shmring/shm"
)

// userDir is the directory in which a user has its objects.
type userDir struct {
	uid, gid int
	path     string
	empty    bool  // as far as its size tells, which tmpfs has grow with each name
	err      error // it is not this user's alone: shm.ErrOwner
}

// emptyDirBytes is the size of a directory of tmpfs without names.
const emptyDirBytes = 40

// dirsOfUsers finds the directories shmring-UID below parent, which is /dev/shm unless another
// one is meant. Nothing is opened and no link is followed: what a user put there is looked at as it
// stands, and has err set unless it is a directory of just that user that nobody else may enter.
func dirsOfUsers(parent string) ([]userDir, error) {
	entries, err := os.ReadDir(parent)
	if err != nil {
		return nil, err
	}
	var out []userDir
	for _, e := range entries {
		number, ok := strings.CutPrefix(e.Name(), shm.UserPrefix)
		uid, err := strconv.ParseUint(number, 10, 32)
		if !ok || err != nil || strconv.FormatUint(uid, 10) != number {
			continue
		}
		d := userDir{uid: int(uid), path: filepath.Join(parent, e.Name())}
		info, err := os.Lstat(d.path)
		if err != nil {
			continue // it went meanwhile
		}
		d.judge(info)
		out = append(out, d)
	}
	slices.SortFunc(out, func(a, b userDir) int { return a.uid - b.uid })
	return out, nil
}

func (d *userDir) judge(info fs.FileInfo) {
	st, ok := info.Sys().(*syscall.Stat_t)
	wrong := func(field string, got, want any) {
		d.err = &shm.Error{Pkg: "shmctl", Op: "look at", Name: d.path, Field: field, Got: got, Want: want,
			Err: shm.ErrOwner, Hint: "it is skipped; whoever made it is not whom its name says"}
	}
	switch {
	case !info.IsDir():
		wrong("type", info.Mode().Type(), "a directory")
	case !ok:
		wrong("owner", "not known", d.uid)
	case int(st.Uid) != d.uid:
		wrong("owner", st.Uid, d.uid)
	case info.Mode().Perm()&0o077 != 0:
		wrong("mode", fmt.Sprintf("%#o", info.Mode().Perm()), "open to its user alone")
	default:
		d.gid, d.empty = int(st.Gid), info.Size() <= emptyDirBytes
	}
}
