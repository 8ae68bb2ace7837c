package command

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/spf13/cobra"

	"github.com/shmring/shmring/cmd/shmctl/internal/soak"
	"github.com/shmring/shmring/internal/crash"
)

const soakLong = `Torture, attack and disturb for long, and prove that nothing is lost.

It runs torture and torture hostile in turns, a minute a round. While processes are killed, single
ones are also frozen by a control group, or get signals as fast as they can be sent, or everybody
has to do without processors for half a second.

The result adds up all rounds: operations, kills, faults, mutations, and what was lost, which is to
be 0. Each violation stands there in words with the seed of its round, for torture --seed.

Built with -tags shmring_steps processes die at labelled steps too, and most rounds have the roles
whose steps killed least often in the rounds before. A round's seed replays that choice only with
the same deaths before it; the result says which roles each round had, for torture --roles.

The exit code is 1 if anything was found.`

func newSoak() *cobra.Command {
	var (
		o   output
		opt soak.Options
	)
	cmd := &cobra.Command{
		Use:   "soak",
		Short: "Torture, attack and disturb for long, and prove that nothing is lost",
		Long:  soakLong,
		Example: `  shmctl torture soak                       half an hour
  shmctl torture soak --duration 8h -o json > soak.json`,
		Args: takesNone,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(cmd); err != nil {
				return err
			}
			if opt.Duration <= 0 || opt.Round <= 0 {
				return &usageError{verb: "torture soak", err: fmt.Errorf(
					"duration %v and round %v have to be positive", opt.Duration, opt.Round)}
			}
			if opt.UntilSteps > 0 && !crash.On {
				return &usageError{verb: "torture soak", err: errors.New("this shmctl has no steps: " +
					"build it with -tags shmring_steps")}
			}
			opt.Steps = crash.On
			if !cmd.Flags().Changed("seed") {
				opt.Seed = rand.Uint64()
			}
			return runSoak(cmd, &o, opt)
		},
	}
	o.flags(cmd)
	f := cmd.Flags()
	f.DurationVar(&opt.Duration, "duration", 30*time.Minute, "how `long`")
	f.DurationVar(&opt.Round, "round", time.Minute, "how `long` a round is")
	f.Uint64Var(&opt.UntilSteps, "until-steps", 0, "end when each step killed `n` times, or at "+
		"--duration")
	f.Uint64Var(&opt.Seed, "seed", 0, "`number` of the first round, each has the next one "+
		"(default: a random one)")
	f.StringVar(&opt.Dir, "dir", "", "`directory` in which those of the rounds are made")
	return cmd
}

func runSoak(cmd *cobra.Command, o *output, opt soak.Options) error {
	return played(cmd, o, "soak", func(show func(string, ...any)) (*soak.Report, error) {
		if show != nil {
			opt.Progress = func(done time.Duration, r *soak.Report) {
				show("%v: %d rounds, %d operations, %d kills, %d mutations, %d lost, %d found",
					done.Round(time.Second), r.Rounds, r.Operations, r.Kills, r.Mutations, r.Lost,
					len(r.Violations))
			}
		}
		return soak.Run(cmd.Context(), opt)
	})
}
