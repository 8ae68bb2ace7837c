package command

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/inspect"
	"github.com/shmring/shmring/shm"
)

// post is the verb that makes completions by hand.
type post struct {
	output
	one   target
	count int
	wait  time.Duration

	entry     cq.ErrorEntry // as far as flags say it without being parsed
	src       uint64
	given     func(flag string) bool
	flags     string
	buf       string
	fault     string
	detail    string
	event     string
	fid       string
	payload   string
	solicited bool
}

// postResult is what post prints.
type postResult struct {
	Queue  string `json:"queue"`
	Lane   int    `json:"lane"`
	Index  uint64 `json:"index"` // of the first one, in its lane
	Posted int    `json:"posted"`
}

func newPost() *cobra.Command {
	p := &post{}
	cmd := &cobra.Command{
		Use:   "post NAME",
		Short: "Post a completion, an event, or an error, by hand",
		Long: `Post a completion to a queue by hand, as a writer of its own: it takes a lane for a moment.
With --event it is an event for an event queue: NOTIFY, CONNREQ, CONNECTED, SHUTDOWN, MR_COMPLETE,
AV_COMPLETE, JOIN_COMPLETE, PEER_DEATH, USER, USER+N or a number.

Numbers can be written as 7, 0x7 or 0b111. Flags are names of the manual (SEND|MSG, FI_RECV,TAGGED)
or numbers. With --error the entry is a failed operation, which the reader takes with ReadErr; ERRNO
is a name (ETRUNC, EIO, FI_ENOMSG) or a number. Without --context no operation stands behind it.

It fails with 3 if there is no such queue, and with 1 if the lane is full, no lane is free, or the
queue is closed or overrun; what was posted before stays.`,
		Example: `  shmctl post orders --context 7 --flags 'SEND|MSG'
  shmctl post orders --context 8 --flags RECV,TAGGED --len 64 --tag 0x2a --solicited
  shmctl post orders --context 9 --error ETRUNC --overrun-bytes 12 --error-data 776879
  shmctl post news --event USER+1 --context 7 --fid queue:0x12:1 --payload 776879
  shmctl post orders --count 100 --wait 5s         as soon as the queue is there`,
		Args: takesOne("NAME"),
		RunE: p.run,
	}
	p.output.flags(cmd)
	p.one.flags(cmd)
	f := cmd.Flags()
	p.given = f.Changed
	f.Uint64Var(&p.entry.Context, "context", 0, "context of the operation (`n`)")
	f.StringVar(&p.flags, "flags", "", "what completed: `names` or numbers")
	f.Uint64Var(&p.entry.Len, "len", 0, "bytes received (`n`)")
	f.StringVar(&p.buf, "buf", "", "where they are (`region+offset`)")
	f.Uint64Var(&p.entry.Data, "data", 0, "remote data, with REMOTE_CQ_DATA (`n`)")
	f.Uint64Var(&p.entry.Tag, "tag", 0, "tag (`n`)")
	f.Uint64Var(&p.src, "src", 0, "sender, by its index in the address vector (`n`)")
	f.BoolVar(&p.solicited, "solicited", false,
		"wake a channel that waits for solicited completions only")
	f.StringVar(&p.fault, "error", "", "the operation failed: `errno`")
	f.Int32Var(&p.entry.ProvErrno, "prov-errno", 0, "the poster's own error number (`n`)")
	f.Uint64Var(&p.entry.OverrunBytes, "overrun-bytes", 0, "bytes that did not fit (`n`)")
	f.StringVar(&p.detail, "error-data", "", "the poster's own detail, in `hex`")
	f.StringVar(&p.event, "event", "", "it is an event, of this `kind`")
	f.StringVar(&p.fid, "fid", "", "object that the event is about (`kind:id:generation`)")
	f.StringVar(&p.payload, "payload", "", "what comes with the event, in `hex`")
	f.IntVarP(&p.count, "count", "c", 1, "post it so many times (`n`)")
	f.DurationVar(&p.wait, "wait", 0, "wait so long for the queue and for room (`time`)")
	_ = cmd.RegisterFlagCompletionFunc("flags",
		cobra.FixedCompletions(inspect.FlagNames(math.MaxUint64), cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (p *post) run(cmd *cobra.Command, args []string) error {
	e, err := p.parse()
	var ev *eventPost
	if err == nil && (p.event != "" || p.fid != "" || p.payload != "") {
		ev, err = p.parseEvent(&e)
	}
	if err != nil {
		return &usageError{err}
	}
	open := p.one.open
	if p.wait > 0 { // also for the first queue ever
		open = p.one.make
	}
	d, err := open(args[0])
	if err != nil {
		return err
	}
	defer d.Close()
	r, err := p.post(cmd.Context(), d, args[0], e, ev)
	if r.Posted > 0 || err == nil {
		if err := p.print(cmd, r); err != nil {
			return err
		}
	}
	if err != nil {
		return p.one.failed(args[0], err)
	}
	return nil
}

// parse makes the entry that the flags describe. A completion has no errno.
func (p *post) parse() (e cq.ErrorEntry, err error) {
	e = p.entry
	if e.Flags, err = inspect.ParseFlags(p.flags); err != nil {
		return e, plain("--flags", err)
	}
	if !p.given("context") {
		e.Flags |= cq.FlagNoContext
	}
	if p.given("src") {
		e.Src = cq.From(cq.Addr(p.src))
	}
	if e.Buf, err = parseRef(p.buf); err != nil {
		return e, err
	}
	if p.count < 1 || p.wait < 0 {
		return e, errors.New("--count must be at least 1, and --wait must not be negative")
	}
	return e, p.parseFault(&e)
}

// parseFault adds what only a failed operation has.
func (p *post) parseFault(e *cq.ErrorEntry) (err error) {
	if p.fault == "" {
		if e.ProvErrno != 0 || e.OverrunBytes != 0 || p.detail != "" {
			return errors.New("--prov-errno, --overrun-bytes and --error-data go with --error")
		}
		return nil
	}
	if p.solicited {
		return errors.New("--solicited does not go with --error: an error always makes an event")
	}
	if e.Err, err = inspect.ParseErrno(p.fault); err != nil {
		return plain("--error", err)
	}
	if e.ErrData, err = hex.DecodeString(p.detail); err != nil {
		return fmt.Errorf("--error-data %q is not hex", p.detail)
	}
	if len(e.ErrData) > cq.ErrDataMaxBytes {
		return fmt.Errorf("--error-data has %d bytes, %d is the most", len(e.ErrData),
			cq.ErrDataMaxBytes)
	}
	return nil
}

// plain says in the words of the command line what a parser of the library refused.
func plain(flag string, err error) error {
	var e *cq.Error
	if errors.As(err, &e) {
		return fmt.Errorf("%s %q is not %v", flag, fmt.Sprint(e.Got), e.Want)
	}
	return err
}

func parseRef(text string) (shm.Ref, error) {
	if text == "" {
		return 0, nil
	}
	region, offset, ok := strings.Cut(text, "+")
	r, err := strconv.ParseUint(region, 0, 16)
	o, err2 := strconv.ParseUint(offset, 0, 48)
	if !ok || err != nil || err2 != nil {
		return 0, fmt.Errorf("--buf %q is not REGION+OFFSET, of 16 and 48 bits", text)
	}
	return shm.MakeRef(uint16(r), o), nil
}

// poster is a writer of either kind of queue.
type poster interface {
	Lane() int
	Stats() cq.WriterStats
	Close() error
}

func (p *post) post(ctx context.Context, d *shm.Dir, name string, e cq.ErrorEntry,
	ev *eventPost) (r postResult, err error) {
	ctx, cancel := context.WithTimeout(ctx, p.wait)
	defer cancel()
	r = postResult{Queue: name}
	w, once, err := p.attach(ctx, d, name, &e, ev)
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("not created within %v: %w", p.wait, fs.ErrNotExist)
	}
	if err != nil {
		return r, interrupted(ctx, err)
	}
	r.Lane, r.Index = w.Lane(), w.Stats().Posted
	for r.Posted < p.count {
		if err = once(); err == nil {
			r.Posted++
			continue
		}
		if !errors.Is(err, cq.ErrFull) || ctx.Err() != nil {
			break
		}
		time.Sleep(time.Millisecond)
	}
	return r, errors.Join(interrupted(ctx, err), w.Close())
}

// interrupted is what ended a wait for a queue, or for room in it.
func interrupted(ctx context.Context, err error) error {
	if ctx.Err() == context.Canceled && (errors.Is(err, ctx.Err()) || errors.Is(err, cq.ErrFull)) {
		return context.Cause(ctx)
	}
	return err
}

// attach becomes a writer, and returns what posts once.
func (p *post) attach(ctx context.Context, d *shm.Dir, name string, e *cq.ErrorEntry,
	ev *eventPost) (poster, func() error, error) {
	o := cq.WriterOptions{Wait: p.wait > 0}
	if ev != nil {
		w, err := cq.AttachEvents(ctx, cq.Named(d, name), o)
		if err != nil {
			return nil, nil, err
		}
		return w, func() error { return ev.once(w) }, nil
	}
	w, err := cq.Attach(ctx, cq.Named(d, name), o)
	if err != nil {
		return nil, nil, err
	}
	return w, func() error { return p.once(w, e) }, nil
}

func (p *post) once(w *cq.Writer, e *cq.ErrorEntry) error {
	if p.fault != "" {
		return w.PostError(e)
	}
	entry := cq.Entry{Context: e.Context, Flags: e.Flags &^ cq.FlagNoContext, Len: e.Len, Buf: e.Buf,
		Data: e.Data, Tag: e.Tag, Src: e.Src}
	if !p.given("context") {
		entry.Meta |= cq.MetaNoContext
	}
	if p.solicited {
		entry.Meta |= cq.MetaSolicited
	}
	return w.Post(&entry)
}

func (p *post) print(cmd *cobra.Command, r postResult) error {
	return p.output.print(cmd.OutOrStdout(), "post", r, line("%s: posted %d, lane %d, index %d",
		printable(r.Queue), r.Posted, r.Lane, r.Index))
}

// eventPost is an event, or a failed operation if fault is set.
type eventPost struct {
	event cq.Event
	fault *cq.EventError
}

// parseEvent makes the event that the flags describe; e has what it has in common with a
// completion.
func (p *post) parseEvent(e *cq.ErrorEntry) (*eventPost, error) {
	ev := &eventPost{event: cq.Event{Context: e.Context, Data: e.Data}}
	if p.event == "" {
		return nil, errors.New("--fid and --payload go with --event")
	}
	if e.Flags&^cq.FlagNoContext != 0 || e.Len != 0 || e.Tag != 0 || e.Buf != 0 || p.given("src") ||
		p.solicited || e.OverrunBytes != 0 {
		return nil, errors.New("an event has no flags, len, buf, tag, src, solicited or overrun-bytes")
	}
	var err error
	if ev.event.Event, err = inspect.ParseEvent(p.event); err != nil {
		return nil, plain("--event", err)
	}
	if p.fid != "" {
		if ev.event.FID, err = inspect.ParseFID(p.fid); err != nil {
			return nil, plain("--fid", err)
		}
	}
	if ev.event.Payload, err = hex.DecodeString(p.payload); err != nil {
		return nil, fmt.Errorf("--payload %q is not hex", p.payload)
	}
	if p.fault == "" {
		return ev, nil
	}
	if len(ev.event.Payload) > 0 {
		return nil, errors.New("--payload does not go with --error: use --error-data")
	}
	ev.fault = &cq.EventError{FID: ev.event.FID, Context: e.Context, Data: e.Data, Err: e.Err,
		ProvErrno: e.ProvErrno, ErrData: e.ErrData}
	return ev, nil
}

func (ev *eventPost) once(w *cq.EventWriter) (err error) {
	if ev.fault != nil {
		_, err = w.WriteErr(ev.fault)
	} else {
		_, err = w.Write(&ev.event)
	}
	return err
}
