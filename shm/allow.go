package shm

import (
	"os"
	"slices"
)

// AllowList says which users may be at the other end of a connection: those of UIDs, and whoever
// was in one of GIDs, as main or supplementary group, when it connected. A nil list, and an empty
// one, allow the effective user of this process only. It must not change while it is in use.
type AllowList struct {
	UIDs, GIDs []int
}

// Allows reports whether a process with these credentials is on the list. It may be called on nil.
func (a *AllowList) Allows(uid, gid int, groups []int) bool {
	if a == nil || len(a.UIDs) == 0 && len(a.GIDs) == 0 {
		return uid == os.Geteuid()
	}
	return slices.Contains(a.UIDs, uid) || slices.Contains(a.GIDs, gid) ||
		slices.ContainsFunc(groups, func(g int) bool { return slices.Contains(a.GIDs, g) })
}
