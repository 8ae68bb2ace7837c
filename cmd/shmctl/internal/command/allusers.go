package command

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/shmring/shmring/ctl"
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
		d.assess(info)
		out = append(out, d)
	}
	slices.SortFunc(out, func(a, b userDir) int { return a.uid - b.uid })
	return out, nil
}

func (d *userDir) assess(info fs.FileInfo) {
	st, ok := info.Sys().(*syscall.Stat_t)
	wrong := func(field string, got, want any) {
		d.err = &shm.Error{Pkg: "shmctl", Op: "look at", Name: d.path, Field: field, Got: got, Want: want,
			Err: shm.ErrOwner, Hint: "it is skipped: another user may have made it"}
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

// usersAt is where the directories of users stand; tests have another.
var usersAt = "/dev/shm"

// asUser is the first argument of a process that does for one user what was asked for all.
const asUser = "shmctl-as-user"

// userChild runs a command line in a process that is already that user's.
func userChild(args []string) (handled bool, code int) {
	if len(args) == 0 || args[0] != asUser {
		return false, 0
	}
	return true, Main(context.Background(), args[1:], os.Stdin, os.Stdout, os.Stderr)
}

const allUsers = "all-users"

// forAllUsers lets a verb do its work in the directory of each user. It is done by a process of
// that user, without privilege: whatever stands there can deceive and harm nobody else.
func forAllUsers(cmd *cobra.Command) *cobra.Command {
	all := cmd.Flags().Bool(allUsers, false, "work in the directories of all users, as a process "+
		"of each;\nneeds root; with -j a line for each user who has something")
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !*all {
			return run(cmd, args)
		}
		const once, other = "--%s looks once: leave --%s out, or have watch(1) repeat it",
			"--%s and --%s exclude each other"
		for name, text := range map[string]string{"dir": other, "pid": other, "watch": once,
			"follow": once} {
			if cmd.Flags().Changed(name) {
				return wrong(text, allUsers, name)
			}
		}
		return eachUser(cmd, args)
	}
	return cmd
}

// eachUser runs the verb for each user, one after the other. What one has not got another may have.
func eachUser(cmd *cobra.Command, args []string) error {
	if os.Geteuid() != 0 { // also if nobody else has anything just now
		return &opError{problem: &ctl.Problem{Code: ctl.CodePermission, Message: "--" + allUsers +
			" needs root", Hint: new("run as root, or without it to look at what is your own")}}
	}
	dirs, err := dirsOfUsers(usersAt)
	if err != nil {
		return opFailed(usersAt, err)
	}
	var failed, missed []error
	done := 0
	for i := range dirs {
		d := &dirs[i]
		if d.err == nil && d.empty {
			continue
		}
		err := oneUser(cmd, args, d, done > 0)
		var e *opError
		switch {
		case err == nil:
			done++
		case errors.As(err, &e) && e.problem.Code == ctl.CodeNotFound:
			missed = append(missed, err)
		default:
			failed = append(failed, err)
		}
	}
	if done == 0 && len(failed) == 0 {
		failed = missed
		if len(missed) == 0 {
			fmt.Fprintln(cmd.ErrOrStderr(), "no user has anything in", usersAt)
		}
	}
	return errors.Join(failed...)
}

// oneUser runs the verb as the user of d and prints what it prints.
func oneUser(cmd *cobra.Command, args []string, d *userDir, more bool) error {
	if d.err != nil {
		return opFailed("", d.err)
	}
	child := exec.CommandContext(cmd.Context(), "/proc/self/exe",
		append([]string{asUser}, again(cmd, args, d.path)...)...)
	// Its user may trace it: it gets neither our terminal nor our environment, and what it says is
	// bounded and cannot give orders to a terminal.
	child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if d.uid != 0 {
		child.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(d.uid), Gid: uint32(d.gid)}
	}
	var out, diag heard
	child.Env, child.Dir, child.WaitDelay = []string{}, "/", time.Second
	child.Stdout, child.Stderr = &out, &diag
	err := child.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return opFailed(d.path, err)
	}
	if err := printUser(cmd, d, out.text(), more); err != nil {
		return err
	}
	if err == nil {
		_, err = cmd.ErrOrStderr().Write(diag.text())
		return err
	}
	return &toldError{opError{name: d.path, problem: &ctl.Problem{
		Message: err.Error(), Code: max(exit.ExitCode(), ctl.CodeFailure)}}, diag.text()}
}

// heard is what a process of another user says.
type heard struct{ b bytes.Buffer }

// heardMostBytes is more than any directory takes to tell of.
const heardMostBytes = 64 << 20

func (h *heard) Write(p []byte) (int, error) {
	if h.b.Len()+len(p) > heardMostBytes {
		return 0, fmt.Errorf("its output is above %d bytes: %w", heardMostBytes, syscall.EFBIG)
	}
	return h.b.Write(p)
}

// text is what it said, printable.
func (h *heard) text() []byte {
	return bytes.Map(func(r rune) rune {
		if r == '\n' || unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, h.b.Bytes())
}

// again is the command line of the verb as it was parsed, for one directory.
func again(cmd *cobra.Command, args []string, dir string) []string {
	line := append(strings.Fields(verbPath(cmd)), "--dir="+dir)
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if list, ok := f.Value.(pflag.SliceValue); ok {
			for _, v := range list.GetSlice() {
				line = append(line, "--"+f.Name+"="+v)
			}
		} else if f.Name != allUsers {
			line = append(line, "--"+f.Name+"="+f.Value.String())
		}
	})
	return append(append(line, "--"), args...)
}

// printUser prints what one user's process printed: a table below the user's name, or JSON with its
// number at the end.
func printUser(cmd *cobra.Command, d *userDir, text []byte, more bool) error {
	w := cmd.OutOrStdout()
	if len(text) == 0 {
		return nil
	}
	if json.Valid(text) {
		before, _ := bytes.CutSuffix(text, []byte("}\n"))
		_, err := fmt.Fprintf(w, "%s,\"uid\":%d}\n", before, d.uid)
		return err
	}
	if on, _ := cmd.Flags().GetBool("no-header"); !on {
		name := strconv.Itoa(d.uid)
		if u, err := user.LookupId(name); err == nil {
			name = u.Username + " (" + name + ")"
		}
		gap := ""
		if more {
			gap = "\n"
		}
		if _, err := fmt.Fprintf(w, "%suser %s, %s\n", gap, printable(name), d.path); err != nil {
			return err
		}
	}
	_, err := w.Write(text)
	return err
}

// toldError is the failure of a process that has said itself what failed.
type toldError struct {
	opError
	text []byte
}

func (e *toldError) Unwrap() error { return &e.opError }

// othersHave says that other users have objects, for one who finds none of its own.
func othersHave(dir string) string {
	dirs, _ := dirsOfUsers(usersAt)
	n := 0
	for _, d := range dirs {
		if d.err == nil && !d.empty && d.uid != os.Geteuid() {
			n++
		}
	}
	if n == 0 || dir != "" {
		return ""
	}
	return fmt.Sprintf("; %d other users have some: as root, shmctl ls --%s", n, allUsers)
}
