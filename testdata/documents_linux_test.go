package testdata

import (
	"bufio"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// ranElsewhere are the beginnings of commands that go on for ever, take long or need a device, and
// the tests of the tool that run them. Their flags are looked at here.
var ranElsewhere = map[string]string{
	"ls -w":           "TestWatchEnds",
	"ls --all-users":  "TestAllUsersAsRoot",
	"tail orders -f":  "TestTailFollows",
	"probe":           "TestProbe",
	"xdp eth0":        "TestXDPShowsEndpoint",
	"serve":           "TestServe",
	"capture":         "TestCaptureIsReadByTshark",
	"demo":            "TestDemo",
	"bench":           "TestBench",
	"torture":         "TestTorture",
	"torture hostile": "TestHostile",
	"torture soak":    "TestSoak",
	"help":            "TestHelp",
}

// TestDocumentsRun runs each command of shmctl that a page names, on the queue of the example.
func TestDocumentsRun(t *testing.T) {
	if testing.Short() {
		t.Skip("takes long: run it without -short")
	}
	bin := t.TempDir()
	shmctl := build(t, bin, "./cmd/shmctl")
	consumer, producer := build(t, bin, "./examples/consumer"), build(t, bin, "./examples/producer")
	helps, done := helps{}, map[string]bool{}
	for page, text := range documents(t) {
		for _, command := range commands(text) {
			command = strings.TrimPrefix(command, "go run ./cmd/")
			args, ours := strings.CutPrefix(command, "shmctl ")
			if !ours || done[args] {
				continue
			}
			done[args] = true
			t.Run(args, func(t *testing.T) {
				if by := elsewhere(args); by != "" {
					if !hasTest(t, "../cmd/shmctl/internal/command", by) {
						t.Errorf("%s: there is no test %s", page, by)
					}
					helps.flagsExist(t, shmctl, words(args))
					return
				}
				env, pid := orders(t, consumer, producer)
				args := words(strings.ReplaceAll(args, "1234", strconv.Itoa(pid)))
				cmd := exec.CommandContext(t.Context(), shmctl, args...)
				cmd.Env = env
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Errorf("%s: %v: %v\n%s", page, cmd, err, out)
				}
			})
		}
	}
	if len(done) < 15 {
		t.Errorf("only %d commands of shmctl were found", len(done))
	}
}

// elsewhere returns the test of the longest beginning that fits.
func elsewhere(args string) (test string) {
	longest := ""
	for begin, by := range ranElsewhere {
		if (args == begin || strings.HasPrefix(args, begin+" ")) && len(begin) >= len(longest) {
			longest, test = begin, by
		}
	}
	return test
}

// helps are the pages of verbs that were asked for.
type helps map[string]string

func (h helps) flagsExist(t *testing.T, shmctl string, args []string) {
	t.Helper()
	verb := slices.DeleteFunc(slices.Clone(args), func(a string) bool {
		return strings.HasPrefix(a, "-")
	})
	help := verb[:1]
	if len(verb) > 1 && verb[0] == "torture" {
		help = verb[:2]
	}
	page, asked := h[strings.Join(help, " ")]
	if !asked {
		out, err := exec.CommandContext(t.Context(), shmctl, append(help, "--help")...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		page = string(out)
		h[strings.Join(help, " ")] = page
	}
	for _, a := range args {
		if strings.HasPrefix(a, "--") && !strings.Contains(page, a+" ") ||
			strings.HasPrefix(a, "-") && len(a) == 2 && !strings.Contains(page, a+", ") {
			t.Errorf("%q has no flag %s", help, a)
		}
	}
}

// orders starts a consumer in a directory of its own and has it read three orders.
func orders(t *testing.T, consumer, producer string) (env []string, pid int) {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "shmring-documents-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	env = append(os.Environ(), "SHMRING_DIR="+dir)
	reader := exec.CommandContext(t.Context(), consumer)
	reader.Env = env
	out, err := reader.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := reader.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = reader.Process.Kill()
		_ = reader.Wait()
	})
	writer := exec.CommandContext(t.Context(), producer)
	writer.Env = env
	if text, err := writer.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	for lines, n := bufio.NewScanner(out), 0; n < 3; n++ {
		if !lines.Scan() {
			t.Fatal("the consumer ended early")
		}
	}
	return env, reader.Process.Pid
}
