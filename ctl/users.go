package ctl

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

// UserDir is the directory in which a user has its objects.
type UserDir struct {
	UID, GID int
	Path     string
	Empty    bool  // as far as its size tells, which tmpfs has grow with each name
	Err      error // it is not this user's alone: shm.ErrOwner
}

// userPrefix is what [shm.DefaultPath] has before the user's number.
const userPrefix = "shmring-"

// emptyDirBytes is the size of a directory of tmpfs without names.
const emptyDirBytes = 40

// UserDirs finds the directories shmring-UID below parent, which is /dev/shm unless something else
// is meant. Nothing is opened and no link is followed: what a user put there is looked at as it
// stands, and has Err set unless it is a directory of just that user that nobody else may enter.
func UserDirs(parent string) ([]UserDir, error) {
	entries, err := os.ReadDir(parent)
	if err != nil {
		return nil, err
	}
	var out []UserDir
	for _, e := range entries {
		number, ok := strings.CutPrefix(e.Name(), userPrefix)
		uid, err := strconv.ParseUint(number, 10, 32)
		if !ok || err != nil || strconv.FormatUint(uid, 10) != number {
			continue
		}
		d := UserDir{UID: int(uid), Path: filepath.Join(parent, e.Name())}
		info, err := os.Lstat(d.Path)
		if err != nil {
			continue // it went meanwhile
		}
		d.judge(info)
		out = append(out, d)
	}
	slices.SortFunc(out, func(a, b UserDir) int { return a.UID - b.UID })
	return out, nil
}

func (d *UserDir) judge(info fs.FileInfo) {
	st, ok := info.Sys().(*syscall.Stat_t)
	wrong := func(field string, got, want any) {
		d.Err = &shm.Error{Pkg: "ctl", Op: "look at", Name: d.Path, Field: field, Got: got, Want: want,
			Err: shm.ErrOwner, Hint: "it is skipped; whoever made it is not whom its name says"}
	}
	switch {
	case !info.IsDir():
		wrong("type", info.Mode().Type(), "a directory")
	case !ok:
		wrong("owner", "not known", d.UID)
	case int(st.Uid) != d.UID:
		wrong("owner", st.Uid, d.UID)
	case info.Mode().Perm()&0o077 != 0:
		wrong("mode", fmt.Sprintf("%#o", info.Mode().Perm()), "open to its user alone")
	default:
		d.GID, d.Empty = int(st.Gid), info.Size() <= emptyDirBytes
	}
}
