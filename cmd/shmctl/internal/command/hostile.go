package command

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/shmring/shmring/cmd/shmctl/internal/hostile"
)

const hostileLong = `Have peers write anything and prove that it harms nobody else.

It starts real processes of different users: attackers, who may attach, those that they attack, and
bystanders on the same queues. Attackers scribble chosen and random values over every word of shared
memory that they may write, at full speed, while they attach, post, read and ring through the
library; and they send broken, half and too many messages over sockets. What they do to is

  - never ended by it, by a panic or an access outside of a mapping, which all have pages on both
    sides that nobody may touch,
  - never held up, nor made to work without bound in one call,
  - told by errors that can be asked for what they are,
  - and as before when the attackers are gone.

Entries of bystanders carry a seal that attackers cannot make: all are read, once and in order.
At borders between users newcomers of one more user come, post and leave all the while; who is
kept out is counted.

It needs root, as only root can start processes of other users. Surfaces that need a network are
left out where there is none, and the result says so.

The seed replays the choices of each process, not the schedule of all of them: a run that found
something need not find it again.

The exit code is 1 if anything was found; what, and with which seed, stands in the result.`

func newHostile() *cobra.Command {
	var (
		o   output
		opt hostile.Options
	)
	const verb = "torture hostile"
	cmd := &cobra.Command{
		Use:   "hostile",
		Short: "Have peers write anything and prove that it harms nobody else",
		Long:  hostileLong,
		Example: `  shmctl torture hostile                      a million mutations
  shmctl torture hostile --mutations 10000000 --seed 7 -o json
  shmctl torture hostile --surfaces lane,reader`,
		Args: takesNone,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(cmd); err != nil {
				return err
			}
			if opt.Mutations == 0 {
				return &usageError{verb: verb, err: errors.New("0 mutations prove nothing")}
			}
			for _, name := range opt.Surfaces {
				if !slices.Contains(hostile.Names(), name) {
					return &usageError{verb: verb, err: fmt.Errorf("no surface %q: there are %s", name,
						strings.Join(hostile.Names(), ", "))}
				}
			}
			if !cmd.Flags().Changed("seed") {
				opt.Seed = rand.Uint64()
			}
			return runHostile(cmd, &o, opt)
		},
	}
	o.flags(cmd)
	f := cmd.Flags()
	f.Uint64Var(&opt.Mutations, "mutations", 1_000_000, "hostile stores and messages, `n` at least")
	f.Uint64Var(&opt.Seed, "seed", 0, "`number` that replays the choices, not the schedule "+
		"(default: a random one)")
	f.StringSliceVar(&opt.Surfaces, "surfaces", nil, "only these `surfaces`: "+
		strings.Join(hostile.Names(), ", "))
	_ = cmd.RegisterFlagCompletionFunc("surfaces", cobra.FixedCompletions(hostile.Names(),
		cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func runHostile(cmd *cobra.Command, o *output, opt hostile.Options) error {
	return played(cmd, o, "hostile", func(show func(string, ...any)) (*hostile.Report, error) {
		if show != nil {
			opt.Progress = func(r *hostile.Report) {
				show("%d surfaces: %d mutations, %d poisoned, %d refused", len(r.Surfaces), r.Mutations,
					r.Poisoned, r.Refused)
			}
		}
		report, err := hostile.Run(cmd.Context(), opt)
		if report != nil && err != nil {
			err = fmt.Errorf("%w (seed %d)", err, report.Seed)
		}
		return report, err
	})
}
