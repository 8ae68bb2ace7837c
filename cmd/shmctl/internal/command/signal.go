package command

import (
	"github.com/spf13/cobra"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/ctl"
)

// signalResult is what signal prints.
type signalResult struct {
	Queue string `json:"queue"`
	// Waiting says that somebody slept who wanted to be woken; without one the signal is kept.
	Waiting bool         `json:"waiting"`
	Reader  *ctl.Process `json:"reader"`
}

func newSignal() *cobra.Command {
	var o output
	var one target
	cmd := &cobra.Command{
		Use:   "signal NAME",
		Short: "End a blocking read of a queue",
		Long: `End one blocking read of a queue, from outside (fi_cq_signal): it returns without an entry
and says that it was signaled. If nobody waits, the next read that would block takes the signal.
Signals do not add up, and entries that are there win. Event queues take it likewise.

It fails with 3 if there is no such queue, and with 1 if its reader cannot block, destroyed it, is
dead or left it: the signal would end the first read of a successor, to whom nobody meant it.`,
		Example: `  shmctl signal orders
  shmctl signal orders -j | jq .signal.waiting`,
		Args: takesOne("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return signalQueue(cmd, &o, &one, args[0])
		},
	}
	o.flags(cmd)
	one.flags(cmd)
	return cmd
}

func signalQueue(cmd *cobra.Command, o *output, one *target, name string) error {
	d, err := one.open(name)
	if err != nil {
		return err
	}
	defer d.Close()
	before, err := ctl.Show(d, name) // whoever waits is gone afterwards
	if err == nil {
		err = cq.SignalQueue(cq.Named(d, name))
	}
	if err != nil {
		return one.failed(name, err)
	}
	r := signalResult{Queue: name, Reader: before.Reader}
	if b := before.Bell; b != nil {
		r.Waiting = b.Armed
	}
	what := "nobody waits: the next read that would block takes it"
	if r.Waiting {
		what = "somebody waited"
	}
	return o.print(cmd.OutOrStdout(), "signal", r, line("%s: signaled, reader %s; %s",
		printable(name), processWords(r.Reader), what))
}
