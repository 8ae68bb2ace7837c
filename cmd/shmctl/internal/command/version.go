package command

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"github.com/shmring/shmring/internal/stage"
	"github.com/shmring/shmring/shm"
)

// versionInfo is what a report of a fault should begin with.
type versionInfo struct {
	Module   string  `json:"module"`
	Version  *string `json:"version"`
	Revision *string `json:"revision"` // of the source, if the build knew it
	Modified *bool   `json:"modified"` // the source was not quite that
	Go       string  `json:"go"`
	OS       string  `json:"os"`
	Arch     string  `json:"arch"`
	ABI      string  `json:"abi"` // of shared memory: major.minor
	Kernel   *string `json:"kernel"`
}

func newVersion() *cobra.Command {
	var o output
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print versions of program, memory layout, Go and kernel, as --version does",
		Example: `  shmctl version
  shmctl version -j | jq -r .version.abi`,
		Args: takesNone,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := readVersion()
			return o.print(cmd.OutOrStdout(), "version", v,
				line("%s", strings.TrimSuffix(versionText(v), "\n")))
		},
	}
	o.flags(cmd)
	return cmd
}

// versionText is what version and --version print.
func versionText(v versionInfo) string {
	same := func(s string) string { return s }
	revision := orDash(v.Revision, same)
	if v.Modified != nil && *v.Modified {
		revision += ", modified"
	}
	return fmt.Sprintf("shmctl %s (%s %s)\nABI    %s\nGo     %s\nkernel %s (%s/%s)\n",
		orDash(v.Version, same), v.Module, revision, v.ABI, v.Go, orDash(v.Kernel, same), v.OS, v.Arch)
}

func readVersion() versionInfo {
	v := versionInfo{Module: "github.com/shmring/shmring", Go: runtime.Version(),
		ABI: fmt.Sprintf("%d.%d", shm.ABIMajor, shm.ABIMinor), OS: runtime.GOOS,
		Arch: runtime.GOARCH, Kernel: stage.Here().Kernel}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	if info.Main.Path == v.Module && info.Main.Version != "" {
		v.Version = &info.Main.Version
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Revision = &s.Value
		case "vcs.modified":
			v.Modified = new(s.Value == "true")
		}
	}
	return v
}
