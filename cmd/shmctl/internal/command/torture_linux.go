package command

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/shmring/shmring/cmd/shmctl/internal/hostile"
	"github.com/shmring/shmring/cmd/shmctl/internal/soak"
	"github.com/shmring/shmring/cmd/shmctl/internal/torture"
	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/stage"
)

const tortureLong = `Kill processes at any moment and prove that nothing is lost.

It starts writers, readers with successors, and processes that make, destroy and collect queues, in
a directory of their own; as root also a device process with its applications, and processes of
other users. It kills one after the other with SIGKILL and starts it again. Now and then it stops
one for longer than the library waits for anything. Each process notes what it does in a file that
is no part of the library. By that file it is checked that

  - everything published is read once, or again and then marked redelivered,
  - nothing is read that was not published, and the order of each lane is kept,
  - nobody hangs, and a stopped process is never taken for dead,
  - at the end no file is left, and nothing is open or mapped in a process that survived.

"Noticed" says how long after a death a survivor knew of it: through its event queue, or because it
got the queue of a dead reader.

Built with -tags shmring_steps it also has processes die at chosen steps of the protocols: --steps.

The seed replays the choices: which process is killed, when and where. It does not replay the
schedule of the processes, and so not what they were doing at that moment: a run that found
something need not find it again.

The exit code is 1 if anything was found; what, and with which seed, stands in the result.`

func newTorture() *cobra.Command {
	var (
		o   output
		opt torture.Options
	)
	cmd := &cobra.Command{
		Use:   "torture",
		Short: "Kill processes at any moment and prove that nothing is lost",
		Long:  tortureLong + "\n\nRoles are " + listed(torture.Roles(), 80) + ".",
		Example: `  shmctl torture                      half a minute
  shmctl torture --duration 10m --seed 7 -o json
  shmctl torture --kills 1000`,
		Args: takesNone,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := settleTorture(cmd, &opt); err != nil {
				return err
			}
			if len(opt.Roles) == 0 {
				opt.Roles = rolesHere(cmd.ErrOrStderr(), torture.Lacks)
			}
			return played(cmd, &o, "torture", func(p *progress) (*torture.Report, error) {
				opt.Progress = func(done time.Duration, r *torture.Report) {
					p.line("%v: %d kills, %d read, %d again, %d lost, %d duplicate",
						done.Round(time.Second), r.Kills, r.Read, r.Redelivered, r.Lost, r.Duplicate)
				}
				report, err := torture.Run(cmd.Context(), opt)
				return report, seeded(report != nil, err, opt.Seed)
			})
		},
	}
	cmd.AddCommand(newTortureReport())
	o.flags(cmd)
	f := cmd.Flags()
	f.DurationVar(&opt.Duration, "duration", 30*time.Second, "run for this `time`")
	f.Uint64Var(&opt.Kills, "kills", 0, "end after `n` kills, or at --duration")
	seedFlag(f, &opt.Seed, seedUsage)
	f.BoolVar(&opt.Steps, "steps", false, "kill at labelled steps too")
	f.Uint64Var(&opt.UntilSteps, "until-steps", 0, "end when each step killed `n` times and there "+
		"were --kills, or at --duration")
	f.StringSliceVar(&opt.Roles, "roles", nil, "run only `these`, and those that they need "+
		"(default: all that can run here)")
	_ = cmd.RegisterFlagCompletionFunc("roles", cobra.FixedCompletions(torture.Roles(),
		cobra.ShellCompDirectiveNoFileComp))
	f.StringVar(&opt.Dir, "dir", "", "make the directory of the run in this `directory`")
	cmd.AddCommand(newHostile(), newSoak())
	return cmd
}

// played runs a tool to its end, shows how far it is on a terminal, and prints what it found, for
// people or as JSON under its key.
func played[R interface {
	comparable
	Sheet() *stage.Sheet
}](cmd *cobra.Command, o *output, key string,
	run func(*progress) (R, error)) error {
	p := progressOf(cmd)
	report, err := run(p)
	p.clear()
	if err != nil {
		err = opFailed("", err)
	}
	var none R
	switch {
	case report == none:
	case o.json():
		err = errors.Join(err, printJSON(cmd.OutOrStdout(), key, report))
	default:
		report.Sheet().Print(cmd.OutOrStdout())
	}
	return err
}

// seeded says in the error of a run that has a report with which seed it was.
func seeded(reported bool, err error, seed uint64) error {
	if err == nil || !reported {
		return err
	}
	return fmt.Errorf("%w (seed %d)", err, seed)
}

const seedUsage = "`number` that replays the choices, not the schedule"

// seedFlag adds the flag of a number that is a random one unless it is given.
func seedFlag(f *pflag.FlagSet, to *uint64, usage string) {
	f.Uint64Var(to, "seed", rand.Uint64(), usage+" (default: random)")
	f.Lookup("seed").DefValue = "0" // which help leaves out
}

// settleTorture refuses options that do not go together, and fills in what follows from them.
func settleTorture(cmd *cobra.Command, opt *torture.Options) error {
	f := cmd.Flags()
	if opt.Duration < 0 || f.Changed("duration") && opt.Duration == 0 {
		return wrong("--duration must be above 0, not %v", opt.Duration)
	}
	if (opt.Kills > 0 || opt.UntilSteps > 0) && !f.Changed("duration") {
		opt.Duration = 0
	}
	if opt.UntilSteps > 0 {
		opt.Steps = true
	}
	if err := known("role", opt.Roles, torture.Roles()); err != nil {
		return err
	}
	return needsSteps(opt.Steps)
}

func needsSteps(wanted bool) error {
	if wanted && !crash.On {
		return wrong("this shmctl has no steps: build it with -tags shmring_steps")
	}
	return nil
}

// known refuses names that are none of those there are.
func known(what string, names, all []string) error {
	for _, name := range names {
		if !slices.Contains(all, name) {
			return wrong("no %s %q: there are %s", what, name, strings.Join(all, ", "))
		}
	}
	return nil
}

// rolesHere returns the roles that can take part on this machine, and says of the others why not.
func rolesHere(stderr io.Writer, lacks func(name string) error) []string {
	able, missing := torture.Able(torture.Roles(), lacks)
	for _, text := range missing {
		fmt.Fprintf(stderr, "shmctl: torture without %s\n", text)
	}
	return able
}

// listed joins names to lines of so many columns.
func listed(names []string, columns int) string {
	var b strings.Builder
	at := 0
	for i, name := range names {
		between := ""
		if i > 0 {
			between = ", "
		}
		if at += len(name) + 2; at > columns {
			between, at = ",\n", len(name)+2
		}
		b.WriteString(between + name)
	}
	return b.String()
}

// newTortureReport turns what -o json wrote into the tables of a document.
func newTortureReport() *cobra.Command {
	return &cobra.Command{
		Use:   "report FILE",
		Short: "Write what torture, soak or hostile -o json said as tables in Markdown",
		Args:  takesOne("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			text, err := os.ReadFile(args[0])
			var v struct {
				Torture *torture.Report
				Soak    *soak.Report
				Hostile *hostile.Report
			}
			if err == nil {
				err = json.Unmarshal(text, &v)
			}
			switch w := cmd.OutOrStdout(); {
			case err != nil:
			case v.Torture != nil:
				v.Torture.Sheet().Markdown(w)
			case v.Soak != nil:
				v.Soak.Sheet().Markdown(w)
			case v.Hostile != nil:
				v.Hostile.Sheet().Markdown(w)
			default:
				err = errors.New("no report of torture, soak or hostile")
			}
			if err != nil {
				return opFailed(args[0], err)
			}
			return nil
		},
	}
}

const hostileLong = `Have peers write anything and prove that it harms nobody else.

It starts real processes of different users: attackers, who may attach, those that they attack, and
bystanders on the same queues. Attackers scribble chosen and random values over every word of shared
memory that they may write, at full speed, while they attach, post, read and ring through the
library; and they send broken, half and too many messages over sockets. Whoever they attack is

  - never ended by it, by a panic or an access outside of a mapping, which all have pages on both
    sides that nobody may touch,
  - never held up, nor made to work without bound in one call,
  - told what is wrong, by errors that a program can test with errors.Is,
  - and as it was when the attackers are gone.

Entries of bystanders carry a seal that attackers cannot make: all are read, once and in order.
Between users, newcomers of one more user come, post and leave all the while; those that are kept
out are counted.

It needs root, because only root can start processes of other users. Surfaces that need a network
are left out if the machine has none, and the result says so.

The seed replays the choices of each process, not the schedule of all of them: a run that found
something need not find it again.

The exit code is 1 if anything was found; what, and with which seed, stands in the result.`

func newHostile() *cobra.Command {
	var (
		o   output
		opt hostile.Options
	)
	cmd := &cobra.Command{
		Use:   "hostile",
		Short: "Have peers write anything and prove that it harms nobody else",
		Long:  hostileLong + "\n\nSurfaces are " + listed(hostile.Names(), 80) + ".",
		Example: `  shmctl torture hostile                      a million mutations
  shmctl torture hostile --mutations 10000000 --seed 7 -o json
  shmctl torture hostile --surfaces lane,reader`,
		Args: takesNone,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if opt.Mutations == 0 {
				return wrong("--mutations must be above 0")
			}
			if err := known("surface", opt.Surfaces, hostile.Names()); err != nil {
				return err
			}
			return played(cmd, &o, "hostile", func(p *progress) (*hostile.Report, error) {
				opt.Progress = func(r *hostile.Report) {
					p.line("%d surfaces: %d mutations, %d poisoned, %d refused", len(r.Surfaces),
						r.Mutations, r.Poisoned, r.Refused)
				}
				report, err := hostile.Run(cmd.Context(), opt)
				return report, seeded(report != nil, err, opt.Seed)
			})
		},
	}
	o.flags(cmd)
	f := cmd.Flags()
	f.Uint64Var(&opt.Mutations, "mutations", 1_000_000,
		"make at least `n` hostile stores and messages")
	seedFlag(f, &opt.Seed, seedUsage)
	f.StringSliceVar(&opt.Surfaces, "surfaces", nil, "attack only `these` surfaces (default: all)")
	_ = cmd.RegisterFlagCompletionFunc("surfaces", cobra.FixedCompletions(hostile.Names(),
		cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

const soakLong = `Torture, attack and disturb for long, and prove that nothing is lost.

It runs torture and torture hostile in turns, a minute a round. While torture kills processes, it
also freezes single ones by a control group, sends them signals without a pause, or takes all
processors for half a second.

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
			if opt.Duration <= 0 || opt.Round <= 0 {
				return wrong("--duration and --round must be above 0")
			}
			if err := needsSteps(opt.UntilSteps > 0); err != nil {
				return err
			}
			opt.Steps = crash.On
			return played(cmd, &o, "soak", func(p *progress) (*soak.Report, error) {
				opt.Progress = func(done time.Duration, r *soak.Report) {
					p.line("%v: %d rounds, %d operations, %d kills, %d mutations, %d lost, %d found",
						done.Round(time.Second), r.Rounds, r.Operations, r.Kills, r.Mutations, r.Lost,
						len(r.Violations))
				}
				return soak.Run(cmd.Context(), opt)
			})
		},
	}
	o.flags(cmd)
	f := cmd.Flags()
	f.DurationVar(&opt.Duration, "duration", 30*time.Minute, "run for this `time`")
	f.DurationVar(&opt.Round, "round", time.Minute, "length of a round (`time`)")
	f.Uint64Var(&opt.UntilSteps, "until-steps", 0, "end when each step killed `n` times, or at "+
		"--duration")
	seedFlag(f, &opt.Seed, "`number` of the first round, each has the next one")
	f.StringVar(&opt.Dir, "dir", "", "make the directories of the rounds in this `directory`")
	return cmd
}
