package command

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/shmring/shmring/ctl"
	"github.com/shmring/shmring/internal/spin"
	xstatus "github.com/shmring/shmring/internal/status"
	"github.com/shmring/shmring/shm"
)

// endpointInfo is what xdp prints of an endpoint.
type endpointInfo struct {
	Name       string            `json:"name"`
	Interface  string            `json:"interface"`
	Index      int               `json:"ifindex"`
	NetNS      *uint64           `json:"netns_cookie"`
	Queue      uint32            `json:"queue"`
	Attach     *string           `json:"attach_mode"` // of the program; null: none
	Program    *uint64           `json:"program_id"`
	Bind       string            `json:"bind_mode"`
	Flags      []string          `json:"flags"`
	UMEM       umemInfo          `json:"umem"`
	Rings      ringInfo          `json:"rings"`
	Local      *string           `json:"local"`
	Receive    *queueRef         `json:"receive"`
	Transmit   *queueRef         `json:"transmit"`
	Process    *ctl.Process      `json:"process"`
	AgeNs      *int64            `json:"age_ns"`
	CounterAge *int64            `json:"counters_age_ns"`
	Captured   bool              `json:"captured"` // or a capture is wanted
	Counters   map[string]uint64 `json:"counters"`
}

type umemInfo struct {
	UUID          string `json:"uuid"`
	Frames        uint32 `json:"frames"`
	ChunkBytes    uint32 `json:"chunk_bytes"`
	HeadroomBytes uint32 `json:"headroom_bytes"`
}

type ringInfo struct {
	Rx   uint32 `json:"rx_entries"`
	Tx   uint32 `json:"tx_entries"`
	Fill uint32 `json:"fill_entries"`
	Comp uint32 `json:"completion_entries"`
}

// queueRef names a completion queue.
type queueRef struct {
	Name string `json:"name"`
	UUID string `json:"uuid"`
}

func newXDP() *cobra.Command {
	var o output
	var one target
	cmd := &cobra.Command{
		Use:   "xdp [NAME|INTERFACE|GLOB]...",
		Short: "List endpoints on network devices, and what their rings count",
		Long: `List the endpoints on AF_XDP sockets of this user: all, or those that are named, by their
own name, by their interface, or by a pattern of either. Named ones are shown whole. The sockets of
a device process (serve) are among them; they have no completion queues of their own.

LOCAL is the address and port that packets come from; where each packet or each program of a device
process has its own, an address that the interface had at first.

MODE is how the steering program is attached and how packets come: copy or zerocopy. RX and TX count
packets of the rings. DROPPED adds up what the kernel gave up, under the names of ss(8) when an
endpoint is shown whole: rx dropped, rx invalid, rx queue full, rx fill ring empty, tx invalid, tx
ring empty. Counters are at most a millisecond old while an endpoint is driven.

What a dead process has left is removed.`,
		Example: `  shmctl xdp                    all endpoints of this user
  shmctl xdp eth0               whole, those on one interface
  shmctl xdp -j | jq '.endpoints[].counters.rx_queue_full'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return listEndpoints(cmd, &o, &one, args)
		},
	}
	o.tableFlags(cmd)
	cmd.Flags().StringVar(&one.dir, "dir", "", "`directory` of the queues")
	return cmd
}

func listEndpoints(cmd *cobra.Command, o *output, one *target, args []string) error {
	if onlyPatterns(args) {
		one.sayAbsent(cmd.ErrOrStderr())
	}
	infos, err := endpoints(one, args)
	if err != nil {
		return err
	}
	return o.print(cmd.OutOrStdout(), "endpoints", infos, func(p page) (out []string) {
		if len(args) == 0 {
			return endpointLines(infos, o, p)
		}
		for i := range infos {
			out = append(out, showEndpoint(&infos[i], o, p)...)
		}
		return out
	})
}

// endpoints returns those that args name, all if there are none. What is no pattern must exist.
func endpoints(one *target, args []string) ([]endpointInfo, error) {
	for _, a := range args {
		if _, err := path.Match(a, ""); err != nil {
			return nil, wrong("pattern %q: %w", a, err)
		}
	}
	d, err := shm.FindDir(one.dir)
	if errors.Is(err, fs.ErrNotExist) && one.dir == "" && onlyPatterns(args) {
		return []endpointInfo{}, nil // before the first object there is no directory
	}
	if err != nil {
		return nil, opFailed(strings.Join(args, " "), err)
	}
	defer d.Close()
	all, err := xstatus.List(d)
	if err != nil && len(all) == 0 {
		return nil, opFailed("", err)
	}
	infos := []endpointInfo{}
	found := map[string]bool{}
	for i := range all {
		wanted := len(args) == 0
		for _, a := range args {
			if endpointMatches(&all[i], a) {
				found[a], wanted = true, true
			}
		}
		if wanted {
			infos = append(infos, newEndpointInfo(&all[i]))
		}
	}
	for _, a := range args {
		if !found[a] && !isPattern(a) {
			return nil, opFailed(a, fmt.Errorf("no endpoint of that name, and none on an "+
				"interface of that name: %w", fs.ErrNotExist))
		}
	}
	return infos, nil
}

func endpointMatches(s *xstatus.Snapshot, pattern string) bool {
	for _, name := range []string{s.Name, s.Info.Interface} {
		if ok, _ := path.Match(pattern, name); ok {
			return true
		}
	}
	return false
}

func newEndpointInfo(s *xstatus.Snapshot) endpointInfo {
	i, c := &s.Info, &s.Counters
	e := endpointInfo{Name: s.Name, Interface: i.Interface, Index: i.Index, Queue: i.Queue,
		Bind: i.Bind.String(), Flags: []string{}, Captured: s.Capture != (shm.UUID{}),
		UMEM: umemInfo{i.UMEM.String(), i.Geometry.Frames, i.Geometry.ChunkBytes,
			i.Geometry.HeadroomBytes},
		Rings:   ringInfo{i.Rings.Rx, i.Rings.Tx, i.Rings.Fill, i.Rings.Comp},
		Receive: refOf(i.Receive, i.ReceiveID), Transmit: refOf(i.Transmit, i.TransmitID),
		Counters: map[string]uint64{},
		Process:  new(ctl.DescribeProcess(s.Owner, s.Life))}
	if i.NetNS != 0 {
		e.NetNS = new(i.NetNS)
	}
	if c.Program != 0 {
		e.Program, e.Attach = new(c.Program), new(c.AttachMode().String())
	}
	for _, f := range []struct {
		on   bool
		name string
	}{{i.NeedWakeup, "need_wakeup"}, {i.MultiBuffer, "multi_buffer"}, {i.Posted, "posted"},
		{i.Shared, "shared"}} {
		if f.on {
			e.Flags = append(e.Flags, f.name)
		}
	}
	switch {
	case !i.Local.Addr().IsValid():
	case i.Local.Port() == 0: // that of each application, or of each send
		e.Local = new(i.Local.Addr().String())
	default:
		e.Local = new(i.Local.String())
	}
	now := spin.Now()
	if boot := shm.Self().BootID; boot != (shm.UUID{}) && boot == s.BootID {
		e.AgeNs, e.CounterAge = new(max(0, now-s.CreatedMono)), new(max(0, now-int64(c.UpdatedNs)))
	}
	for k, name := range xstatus.CounterNames()[counterStart:] {
		e.Counters[name] = s.Words[counterStart+k]
	}
	return e
}

// counterStart leaves out the words that are no counters.
const counterStart = 3

func refOf(name string, id shm.UUID) *queueRef {
	if name == "" && id == (shm.UUID{}) {
		return nil
	}
	return &queueRef{name, id.String()}
}

// dropped adds up what the kernel gave up.
func (e *endpointInfo) dropped() uint64 {
	c := e.Counters
	return c["rx_dropped"] + c["rx_invalid"] + c["rx_queue_full"] + c["tx_invalid"]
}

// mode says how the program is attached, and how packets come.
func (e *endpointInfo) mode() string { return orDash(e.Attach, printable) + "/" + e.Bind }

func endpointLines(infos []endpointInfo, o *output, p page) []string {
	t := &table{columns: []column{left("ENDPOINT", 4), left("INTERFACE", 0), right("QUEUE", 0),
		left("MODE", 1), right("PROG", 6), left("LOCAL", 3), right("RX", 0), right("TX", 0),
		right("DROPPED", 0), right("FRAMES", 5), left("PROCESS", 2), left("RECEIVE", 0)}}
	for i := range infos {
		e := &infos[i]
		prog := "-"
		if e.Program != nil {
			prog = strconv.FormatUint(*e.Program, 10)
		}
		queue := "-"
		if e.Receive != nil {
			queue = printable(e.Receive.Name)
		}
		t.add(cut(strings.TrimPrefix(e.Name, xstatus.Prefix), 8), printable(e.Interface),
			strconv.Itoa(int(e.Queue)), e.mode(), prog, orDash(e.Local, printable),
			o.number(e.Counters["ring_received"]), o.number(e.Counters["ring_posted"]),
			o.number(e.dropped()), strconv.Itoa(int(e.UMEM.Frames)), processWords(e.Process), queue)
	}
	return t.lines(!o.noHeader, p, "")
}

// showEndpoint prints all of an endpoint, a line each.
func showEndpoint(e *endpointInfo, o *output, p page) []string {
	out := []string{p.bold(e.Name)}
	add := func(key, value string) { out = append(out, fieldLine(key, value, o)) }
	ref := func(q *queueRef) string {
		if q == nil {
			return "-"
		}
		return printable(q.Name)
	}
	add("interface", fmt.Sprintf("%s (%d), queue %d", printable(e.Interface), e.Index, e.Queue))
	add("mode", fmt.Sprintf("program %s, attached %s, %s, %s", orDash(e.Program,
		func(n uint64) string { return strconv.FormatUint(n, 10) }), orDash(e.Attach, printable),
		e.Bind, strings.Join(e.Flags, " ")))
	add("local", orDash(e.Local, printable))
	add("umem", fmt.Sprintf("frames:%d chunk_size:%d headroom:%d", e.UMEM.Frames, e.UMEM.ChunkBytes,
		e.UMEM.HeadroomBytes))
	add("rings", fmt.Sprintf("rx:%d tx:%d fr:%d cr:%d", e.Rings.Rx, e.Rings.Tx, e.Rings.Fill,
		e.Rings.Comp))
	add("receive", ref(e.Receive))
	add("transmit", ref(e.Transmit))
	add("process", processLine(e.Process))
	if e.Captured {
		add("capture", "yes")
	}
	for _, name := range xstatus.CounterNames()[counterStart:] {
		add(strings.ReplaceAll(name, "_", " "), o.number(e.Counters[name]))
	}
	return out
}
