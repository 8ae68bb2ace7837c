package bench

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/shmring/shmring/testdata"
)

// toolchain compiles rivals into a directory of its own, each once.
type toolchain struct {
	cc  string
	dir string
}

// newToolchain finds the compiler and makes the directory; its error wraps ErrNoCompiler when there
// is none.
func newToolchain(compiler string) (*toolchain, error) {
	if compiler == "none" {
		return nil, fmt.Errorf("%w: none was asked for", ErrNoCompiler)
	}
	cc, err := exec.LookPath(compiler)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoCompiler, err)
	}
	dir, err := os.MkdirTemp("", "shmring-bench-")
	if err != nil {
		return nil, fmt.Errorf("bench: directory for the rivals: %w", err)
	}
	t := &toolchain{cc: cc, dir: dir}
	if err := t.unpack(); err != nil {
		t.close()
		return nil, err
	}
	return t, nil
}

func (t *toolchain) unpack() error {
	if err := os.CopyFS(t.dir, testdata.Rivals); err != nil {
		return fmt.Errorf("bench: unpack the rivals: %w", err)
	}
	return nil
}

// build returns the path of a compiled rival.
func (t *toolchain) build(ctx context.Context, source string) (string, error) {
	exe := filepath.Join(t.dir, source)
	if _, err := os.Stat(exe); err == nil {
		return exe, nil
	}
	file := filepath.Join(t.dir, "rivals", source+".c")
	flags := []string{"-O2", "-o", exe, file}
	if source == libfabricSource { // what is inlined of it is the user's to optimise
		flags = []string{"-O3", "-march=native", "-o", exe, file, "-lfabric"}
	}
	out, err := exec.CommandContext(ctx, t.cc, flags...).CombinedOutput()
	if err != nil && source == libfabricSource && noLibrary(string(out)) {
		return "", ErrNoLibrary
	}
	if err != nil {
		return "", fmt.Errorf("bench: %s %s.c: %w: %s", t.cc, source, err,
			strings.TrimSpace(string(out)))
	}
	return exe, nil
}

const libfabricSource = "libfabric"

// noLibrary tells a library that is not installed from a rival that does not compile, by what every
// compiler and linker names: the header, or the library.
func noLibrary(output string) bool {
	for line := range strings.Lines(output) {
		if strings.Contains(line, "rdma/fabric.h") && strings.Contains(line, "No such file") ||
			strings.Contains(line, "-lfabric") || strings.Contains(line, "'rdma/fabric.h' file not found") {
			return true
		}
	}
	return false
}

func (t *toolchain) close() { _ = os.RemoveAll(t.dir) }
