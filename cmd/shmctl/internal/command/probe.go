package command

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/shmring/shmring/ctl"
	xstatus "github.com/shmring/shmring/internal/status"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp"
)

// probeResult is what probe prints.
type probeResult struct {
	Interface string          `json:"interface"`
	Index     int             `json:"ifindex"`
	Driver    *string         `json:"driver"`
	MTU       int             `json:"mtu"`
	Usable    bool            `json:"usable"`
	Findings  []findingResult `json:"findings"`
}

type findingResult struct {
	Name     string  `json:"name"`
	Value    *string `json:"value"`
	OK       bool    `json:"ok"`
	Required bool    `json:"required"`
	Remedy   *string `json:"remedy"`
	Endpoint *string `json:"endpoint"` // of this library, that is what was found
}

func newProbe() *cobra.Command {
	var o output
	cmd := &cobra.Command{
		Use:   "probe INTERFACE",
		Short: "Say what a network device and the kernel can do for AF_XDP",
		Long: `Say what a network device, its driver and the kernel can do for endpoints, one line each,
with the remedy where something is missing. It tries what it can: it loads the steering program
without attaching it, and opens a socket on queue 0 for a moment.

! marks what no endpoint works without; then the exit code is 1. - marks what is only missed. An
endpoint of this user that has queue 0, or whose program is on the interface, is named.`,
		Example: `  shmctl probe eth0
  shmctl probe eth0 -j | jq '.probe.findings[] | select(.ok | not)'`,
		Args: takesOne("INTERFACE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return probe(cmd, &o, args[0])
		},
	}
	o.tableFlags(cmd)
	return cmd
}

func probe(cmd *cobra.Command, o *output, name string) error {
	r, err := xdp.Probe(name)
	if err != nil {
		return deviceFailed(name, err)
	}
	out := probeResult{Interface: r.Interface, Index: r.Index, MTU: r.MTU, Usable: r.Usable,
		Driver: orNil(r.Driver), Findings: []findingResult{}}
	own := ownEndpoints(r)
	for _, f := range r.Findings {
		one := findingResult{Name: f.Name, Value: orNil(f.Value), OK: f.OK, Required: f.Required,
			Remedy: orNil(f.Remedy)}
		if name := own[f.Name]; name != "" && !f.OK {
			one.Endpoint = &name
			one.Value = new(f.Value + ", of " + name)
			one.Remedy = new(fmt.Sprintf("see \"shmctl xdp %s\"; end it, or share what it has", name))
		}
		out.Findings = append(out.Findings, one)
	}
	err = o.print(cmd.OutOrStdout(), "probe", out, func(p page) []string {
		return probeLines(&out, o, p)
	})
	if err == nil && !out.Usable {
		err = opFailed(name, fmt.Errorf("no endpoint works here: the lines with ! say why"))
	}
	return err
}

// ownEndpoints names the endpoints of this user that a probe found in its way, by the finding.
func ownEndpoints(r *xdp.ProbeReport) map[string]string {
	busy := errors.Is(r.SocketErr, xdp.ErrQueueBusy)
	if !busy && r.Program.ID == 0 {
		return nil
	}
	d, err := shm.FindDir("")
	if err != nil {
		return nil // without the directory there are none
	}
	defer d.Close()
	all, _ := xstatus.List(d) // what cannot be read cannot be named
	own := map[string]string{}
	for i := range all {
		s := &all[i]
		if s.Info.NetNS != r.NetNS || s.Info.Index != r.Index {
			continue
		}
		const tried = 0 // the queue
		if busy && s.Info.Queue == tried {
			own["socket"] = s.Name
		}
		if r.Program.ID != 0 && s.Counters.Program == uint64(r.Program.ID) && own["program"] == "" {
			own["program"] = s.Name
		}
	}
	return own
}

// deviceFailed gives errors of a device the codes that other verbs have for their like.
func deviceFailed(name string, err error) error {
	e := &opError{name, ctl.NewProblem(err)}
	if errors.Is(err, xdp.ErrNoDevice) || errors.Is(err, xdp.ErrNoQueue) {
		e.problem.Code = ctl.CodeNotFound
	}
	if errors.Is(err, xdp.ErrNoDevice) && e.problem.Hint == nil {
		e.problem.Hint = new(`see "ip link"; interfaces of other network namespaces are not seen`)
	}
	return e
}

func probeLines(r *probeResult, o *output, p page) []string {
	t := &table{columns: []column{left("", 0), left("WHAT", 0), left("FOUND", 0), left("REMEDY", 0)}}
	for _, f := range r.Findings {
		mark := ""
		switch {
		case !f.OK && f.Required:
			mark = "!"
		case !f.OK:
			mark = "-"
		}
		remedy := ""
		if f.Remedy != nil {
			remedy = printable(*f.Remedy)
		}
		value := "not known"
		if f.Value != nil {
			value = printable(*f.Value)
		}
		t.add(mark, f.Name, value, remedy)
	}
	return t.lines(!o.noHeader, p, "")
}
