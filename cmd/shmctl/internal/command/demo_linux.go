package command

import (
	"github.com/spf13/cobra"

	"github.com/shmring/shmring/cmd/shmctl/internal/demo"
)

func newDemo() *cobra.Command {
	var (
		o   output
		opt demo.Options
	)
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Send frames over a wire into another process's completion queue, and back",
		Long: `Send frames over a wire into another process's completion queue, and back.

As root it joins two network namespaces by a veth pair. A device process owns an AF_XDP socket on
one end and posts into the queue of an application process, which reads every payload in place and
gives the frame back; a plain UDP socket on the other end sends. Then the other way: the application
posts sends, the device process transmits them, the UDP socket verifies them, and each completion
comes back with its context. Every payload has a number and a checksum.

Without root, or with --path shm, a producer process stands in for the device; that needs no
privilege. Nothing is left behind, also when it is interrupted or killed. The exit code is 0 only
if nothing was lost, duplicated or corrupt.`,
		Example: `  shmctl demo                        the device path if possible
  shmctl demo --path shm -o json     shared memory alone
  shmctl demo -c 5000000 & shmctl ls -w`,
		Args: takesNone,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if opt.Count == 0 {
				return wrong("--count must be above 0")
			}
			return played(cmd, &o, "demo", func(p *progress) (*demo.Report, error) {
				opt.Progress = func(phase string, done, total uint64) {
					p.phase(phase).line("%s: %d of %d", phase, done, total)
				}
				return demo.Run(cmd.Context(), opt)
			})
		},
	}
	o.flags(cmd)
	f := cmd.Flags()
	oneOf(cmd, &opt.Path, "path", "", "`path`: auto, af_xdp or shm", demo.PathAuto, demo.PathAFXDP,
		demo.PathShm)
	f.Uint64VarP(&opt.Count, "count", "c", 200_000, "datagrams in each direction (`n`)")
	f.StringVar(&opt.Dir, "dir", "", "`directory` of the queues")
	return cmd
}
