package command

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/shmring/shmring/ctl"
	"github.com/shmring/shmring/internal/capture"
	"github.com/shmring/shmring/internal/capture/pcapng"
	"github.com/shmring/shmring/internal/spin"
	xstatus "github.com/shmring/shmring/internal/status"
	"github.com/shmring/shmring/shm"
)

// captureRun is one run of capture.
type captureRun struct {
	output
	target
	file     string
	count    uint64
	duration time.Duration
	snap     int
	slots    int
	wait     time.Duration
}

// captureResult is what capture says at its end.
type captureResult struct {
	Endpoints []string `json:"endpoints"`
	Seen      uint64   `json:"seen"`
	Written   uint64   `json:"written"`
	Dropped   uint64   `json:"dropped"` // for want of room; the endpoints went on
}

func newCapture() *cobra.Command {
	c := &captureRun{}
	cmd := &cobra.Command{
		Use:   "capture INTERFACE|QUEUE --write FILE.pcapng",
		Short: "Copy what endpoints receive and send into a file for tcpdump and Wireshark",
		Long: `Copy the packets of endpoints into a pcapng file: of those on an interface, of those that
post to a completion queue, or of the one with this name. On an interface that a device process
serves that is what all of its programs receive and send, which its own user may capture. The
endpoints go on as they are: what this command cannot take in time is left out, counted, and noted
in the file.

Each packet has its time to the nanosecond, its direction, its queue and how many were left out
before it. It ends with --count, --duration, an interrupt, or when the last endpoint is closed.
--write - writes to standard output, for a live view.`,
		Example: `  shmctl capture eth0 --write eth0.pcapng --duration 10s
  shmctl capture orders --write orders.pcapng -c 1000 --snap 128
  shmctl capture eth0 --write - | tshark -r -`,
		Args: takesOne("INTERFACE or QUEUE"),
		RunE: func(cmd *cobra.Command, args []string) error { return c.run(cmd, args[0]) },
	}
	c.output.flags(cmd)
	f := cmd.Flags()
	f.StringVar(&c.dir, "dir", "", "`directory` of the queues")
	f.StringVar(&c.file, "write", "", "`file` to write, - for standard output")
	f.Uint64VarP(&c.count, "count", "c", 0, "end after that many packets (`n`)")
	f.DurationVar(&c.duration, "duration", 0, "end after that long (`time`)")
	f.IntVar(&c.snap, "snap", 2048, "`bytes` of each packet that are kept")
	f.IntVar(&c.slots, "slots", 0, "room for `n` packets; 0 is 8 MiB")
	f.DurationVar(&c.wait, "wait", 5*time.Second, "wait so long for endpoints to join (`time`)")
	return cmd
}

func (c *captureRun) run(cmd *cobra.Command, name string) error {
	if c.file == "" {
		return wrong("--write FILE is missing; - is standard output")
	}
	if c.duration < 0 || c.snap < 1 || c.snap > capture.MaxSnapBytes || c.slots < 0 {
		return wrong("--duration and --slots must not be negative, and --snap must be 1 to %d",
			capture.MaxSnapBytes)
	}
	d, err := c.open(name)
	if err != nil {
		return err
	}
	defer d.Close()
	targets, err := capturable(d, name)
	if err != nil {
		return opFailed(name, err)
	}
	out, closeOut, err := c.sink(cmd)
	if err != nil {
		e := &opError{name, ctl.NewProblem(err)}
		e.problem.Hint = new("--write names a file in a directory that exists and is yours to write")
		return e
	}
	ctx := cmd.Context() // an interrupt ends the capture, not the file
	if c.duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.duration)
		defer cancel()
	}
	result, err := c.captureTo(ctx, out, d, targets)
	if e := closeOut(); err == nil {
		err = e
	}
	if err != nil {
		return opFailed(name, err)
	}
	return c.report(cmd, result)
}

// capturable finds the endpoints that a name means.
func capturable(d *shm.Dir, name string) ([]xstatus.Snapshot, error) {
	all, err := xstatus.List(d)
	if err != nil && len(all) == 0 {
		return nil, err
	}
	queue := ""
	if q, _ := ctl.Show(d, name); q.UUID != nil {
		queue = *q.UUID
	}
	var out []xstatus.Snapshot
	for _, s := range all {
		posts := s.Info.ReceiveID.String() == queue || s.Info.TransmitID.String() == queue
		if queue == "" { // one without a name in the directory is known by what it is called
			posts = name != "" && (s.Info.Receive == name || s.Info.Transmit == name)
		}
		if posts || endpointMatches(&s, name) {
			out = append(out, s)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("no endpoint is on an interface of that name, or posts to a queue of "+
			"that name: %w", fs.ErrNotExist)
	}
	return out, nil
}

func (c *captureRun) sink(cmd *cobra.Command) (w io.Writer, done func() error, err error) {
	if c.file == "-" {
		return cmd.OutOrStdout(), func() error { return nil }, nil
	}
	f, err := os.OpenFile(c.file, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, nil, err
	}
	return f, f.Close, nil
}

// session is the capture of one endpoint.
type session struct {
	*capture.Session
	name  string
	iface int
	over  bool
}

// capturing is what is going on.
type capturing struct {
	run      *captureRun
	buf      *bufio.Writer
	out      *pcapng.Writer
	sessions []*session
	offsetNs int64 // from CLOCK_MONOTONIC to the time of day
	startNs  uint64
	written  uint64
	checkAt  time.Time
	joinBy   time.Time
}

func (c *captureRun) captureTo(ctx context.Context, w io.Writer, d *shm.Dir,
	targets []xstatus.Snapshot,
) (r captureResult, err error) {
	k := &capturing{run: c, buf: bufio.NewWriterSize(w, 1<<20), joinBy: time.Now().Add(c.wait)}
	k.offsetNs = time.Now().UnixNano() - spin.Now()
	k.startNs = uint64(time.Now().UnixNano())
	if k.out, err = pcapng.NewWriter(k.buf, "shmctl"); err != nil {
		return r, err
	}
	defer func() {
		for _, s := range k.sessions {
			err = errors.Join(err, s.Close())
		}
	}()
	for i := range targets {
		if err := k.add(d, &targets[i]); err != nil {
			return r, err
		}
	}
	if f, ok := w.(*os.File); ok && c.file != "-" { // what was there stays if there is no capture
		_ = f.Truncate(0) // a device or a pipe has no length
	}
	if err := k.loop(ctx); err != nil {
		return r, err
	}
	return k.finish()
}

func (k *capturing) add(d *shm.Dir, t *xstatus.Snapshot) error {
	s, err := capture.Start(d, t.Name, capture.Options{SnapBytes: k.run.snap, Slots: k.run.slots})
	if err != nil {
		return err
	}
	one := &session{Session: s, name: t.Name}
	k.sessions = append(k.sessions, one)
	one.iface, err = k.out.AddInterface(pcapng.Interface{Name: t.Info.Interface,
		Description: fmt.Sprintf("%s, queue %d", t.Name, t.Info.Queue), SnapBytes: uint32(k.run.snap)})
	return err
}

// readBatch is how many packets of one endpoint are taken before the next one has its turn.
const readBatch = 256

// loop reads until it is told to stop, has enough, or the endpoints are gone.
func (k *capturing) loop(ctx context.Context) error {
	const pause = time.Millisecond
	for !k.enough() {
		n, err := k.round()
		switch {
		case err != nil:
			return err
		case ctx.Err() != nil:
			return nil
		case n > 0:
			continue
		case k.ended():
			return nil
		}
		if err := k.buf.Flush(); err != nil { // somebody may be looking
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
	return nil
}

func (k *capturing) enough() bool { return k.run.count > 0 && k.written >= k.run.count }

func (k *capturing) round() (total int, err error) {
	for _, s := range k.sessions {
		n, err := s.Read(readBatch, func(p *capture.Packet) error {
			if k.enough() {
				return nil
			}
			k.written++
			return k.out.Write(&pcapng.Packet{Interface: s.iface,
				UnixNs: uint64(int64(p.MonoNs) + k.offsetNs), Sent: p.Sent, Queue: p.Queue,
				Len: p.Len, Dropped: p.Dropped, Bytes: p.Bytes})
		})
		if err != nil {
			return total, err
		}
		total += n
	}
	return total, nil
}

// ended reports whether no endpoint is left, but for those that never came. It looks now and then.
func (k *capturing) ended() bool {
	now := time.Now()
	if now.Before(k.checkAt) {
		return false
	}
	k.checkAt = now.Add(100 * time.Millisecond)
	left := 0
	for _, s := range k.sessions {
		s.over = s.over || s.Left() || !s.TargetLives() || !s.Attached() && now.After(k.joinBy)
		if !s.over {
			left++
		}
	}
	return left == 0
}

// finish takes what the endpoints still copied, and writes what was left out.
func (k *capturing) finish() (r captureResult, err error) {
	for _, s := range k.sessions {
		if err := s.Stop(); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return r, err
		}
	}
	k.checkAt, k.joinBy = time.Time{}, time.Now() // who has not come comes no more
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := k.loop(ctx); err != nil {
		return r, err
	}
	for _, s := range k.sessions {
		counts := s.Counts()
		r.Endpoints = append(r.Endpoints, s.name)
		r.Seen, r.Dropped = r.Seen+counts.Seen, r.Dropped+counts.Dropped
		err := k.out.WriteStatistics(&pcapng.Statistics{Interface: s.iface, StartNs: k.startNs,
			EndNs: uint64(time.Now().UnixNano()), Seen: counts.Seen, Dropped: counts.Dropped})
		if err != nil {
			return r, err
		}
		if !s.Attached() && s.TargetLives() {
			return r, fmt.Errorf("%s did not join: nobody drives it; call its Progress or Run", s.name)
		}
	}
	r.Written = k.written
	return r, k.buf.Flush()
}

func (c *captureRun) report(cmd *cobra.Command, r captureResult) error {
	w := cmd.OutOrStdout()
	if c.file == "-" {
		w = cmd.ErrOrStderr() // the packets are on the other
	}
	return c.print(w, "capture", r, line("%d packets of %d endpoints written, %d seen, %d left out",
		r.Written, len(r.Endpoints), r.Seen, r.Dropped))
}
