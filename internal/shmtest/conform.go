package shmtest

import (
	"flag"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/shmring/shmring/testdata"
)

// ran holds the names of the tests that said that they prove a row, with what became of them.
var ran struct {
	sync.Mutex
	passed, skipped []string
}

// Conforms says that the test proves a row of testdata/conformance.tsv. It fails if no row names
// it; and a run of all tests of a package fails if a row names one that did not say so.
func Conforms(t testing.TB) {
	t.Helper()
	pkg := packagePath()
	refs, err := proofs()
	if err != nil {
		t.Fatal(err)
	}
	if !named(refs, pkg+"."+t.Name()) {
		t.Errorf("no row of testdata/conformance.tsv names %s.%s", pkg, t.Name())
	}
	t.Cleanup(func() {
		ran.Lock()
		defer ran.Unlock()
		if t.Skipped() {
			ran.skipped = append(ran.skipped, pkg+"."+t.Name())
		} else {
			ran.passed = append(ran.passed, pkg+"."+t.Name())
		}
	})
}

// proofs are the tests that rows name.
var proofs = sync.OnceValues(func() (map[string]bool, error) {
	rows, err := testdata.Conformance()
	refs := map[string]bool{}
	for _, r := range rows {
		for _, ref := range r.Tests() {
			refs[ref] = true
		}
	}
	return refs, err
})

// named reports whether a row names the test, or one that it is a case of.
func named(refs map[string]bool, name string) bool {
	for !refs[name] {
		at := strings.LastIndexByte(name, '/')
		if at < 0 {
			return false
		}
		name = name[:at]
	}
	return true
}

// proves reports whether a test of that name is the one that a row refers to, or a case of it.
func proves(name, ref string) bool {
	return name == ref || strings.HasPrefix(name, ref+"/")
}

// unproved returns the rows that name a test of this package that did not run, after a run that
// should have run all. A skip is a run only for who is not required to be root.
func unproved() []string {
	pkg := packagePath()
	if pkg == "" || !allTests() {
		return nil
	}
	rows, err := testdata.Conformance()
	if err != nil {
		return []string{err.Error()}
	}
	names := ran.passed
	if !requires("root") { // what only root can do is shown by a run of root
		names = append(names, ran.skipped...)
	}
	return missing(rows, pkg, names)
}

func missing(rows []testdata.Row, pkg string, names []string) (out []string) {
	for _, r := range rows {
		for _, ref := range r.Tests() {
			if strings.HasPrefix(ref, pkg+".") &&
				!slices.ContainsFunc(names, func(n string) bool { return proves(n, ref) }) {
				out = append(out, "conformance row "+r.ID+": "+ref+" did not run")
			}
		}
	}
	return out
}

// allTests reports whether neither the command line nor the system leaves a test out.
func allTests() bool {
	if runtime.GOOS != "linux" {
		return false
	}
	for _, name := range []string{"test.run", "test.skip", "test.list", "test.fuzz"} {
		if f := flag.Lookup(name); f == nil || f.Value.String() != "" {
			return false
		}
	}
	return !testing.Short()
}

// ownModule begins the go.mod of the library; modules of tests lie below it.
const ownModule = "module github.com/shmring/shmring\n"

// packagePath returns the folder of the package under test below the library's, where tests are
// run; empty if the binary was taken elsewhere.
var packagePath = sync.OnceValue(func() string {
	dir, err := os.Getwd()
	if err != nil {
		return ""
	}
	for at := dir; at != filepath.Dir(at); at = filepath.Dir(at) {
		if b, err := os.ReadFile(filepath.Join(at, "go.mod")); err == nil &&
			strings.HasPrefix(string(b), ownModule) {
			rel, err := filepath.Rel(at, dir)
			if err != nil {
				return ""
			}
			return filepath.ToSlash(rel)
		}
	}
	return ""
})
