package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/shmring/shmring/internal/netif"
	"github.com/shmring/shmring/xdp"
	"github.com/shmring/shmring/xdp/device"
)

// serve is one run of the verb.
type serve struct {
	output
	dev, socket, queue string
	allow              []string
	frames             uint32
	every              time.Duration

	config device.Config
}

func newServe() *cobra.Command {
	s := &serve{}
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Own a network interface, and let unprivileged programs send and receive through it",
		Long: `Own a network interface, and let unprivileged programs send and receive through it.

The process binds AF_XDP sockets to the interface's queues and attaches the steering program; that
needs root, or CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF. Programs connect to its socket (package
xdp/device: Dial), take UDP ports, and get packets in memory that they share with this process
alone: those for the interface's own addresses and the groups that are joined on it, untagged, with
a right checksum. Everything else that arrives goes to the kernel as before.

Who may connect is said by --allow, once for each user or group:

  uid:NUMBER or gid:NUMBER, then any of, with commas between
  ports=FIRST-LAST   which ports may be taken; all if not said
  to=any             packets to them whatever they are addressed to: other hosts, broadcast, VLANs
  frames=N           received packets that may be unread or in use; 512
  sends=N            sends under way; 256
  rules=N            ports taken at a time; 8
  apps=N             connections; 16
  destinations=N     addresses to which the way is remembered; 4096
  memory=N           mebibytes of lanes in the programs' queues; 64

Without --allow only programs of the same user are served. A program that dies gives everything
back at once; when this process dies its programs find the next one on the same path by themselves.
It runs until it is interrupted or terminated, prints a line when it is ready (and tells systemd, if
NOTIFY_SOCKET is set), and shows its programs on a terminal.`,
		Example: `  shmctl serve --dev eth1 --allow uid:1000,ports=5000-5100
  shmctl serve --dev eth1 --queue 0 --socket /run/eth1.sock --allow gid:27 -o json`,
		Args: takesNone,
		RunE: s.run,
	}
	s.flags(cmd)
	f := cmd.Flags()
	f.StringVar(&s.dev, "dev", "", "network `interface` to own")
	f.StringVar(&s.queue, "queue", "all", "`number` of the queue to bind, or all")
	f.StringVar(&s.socket, "socket", "", "`path` of the socket (default "+
		socketOf("INTERFACE")+")")
	f.StringArrayVar(&s.allow, "allow", nil, "`who` may connect, and how much they get; repeated")
	f.Uint32Var(&s.frames, "frames", 4096, "frames of each queue (`n`)")
	oneOf(cmd, &s.config.Attach, "mode", "", "attach the program in `mode` auto, native or generic",
		xdp.AttachAuto, xdp.AttachNative, xdp.AttachGeneric)
	oneOf(cmd, &s.config.Socket.Mode, "bind", "", "bind sockets in `mode` auto, copy or zerocopy",
		xdp.BindAuto, xdp.BindCopy, xdp.BindZeroCopy)
	f.DurationVar(&s.every, "interval", time.Second, "`time` between two looks on a terminal")
	return cmd
}

func (s *serve) run(cmd *cobra.Command, _ []string) error {
	if err := s.configure(); err != nil {
		return &usageError{err}
	}
	return s.serve(cmd)
}

// configure turns the flags into a configuration.
func (s *serve) configure() error {
	if s.dev == "" {
		return errors.New("--dev is missing: name the interface")
	}
	c := s.config
	c.Interface, c.Frames = s.dev, s.frames
	if s.queue != "all" {
		n, err := strconv.ParseUint(s.queue, 10, 16)
		if err != nil {
			return fmt.Errorf("--queue must be a number or all, not %q", s.queue)
		}
		c.Queues = []uint32{uint32(n)}
	}
	for _, text := range s.allow {
		a, err := device.ParseAllow(text)
		if err != nil {
			return err
		}
		c.Allow = append(c.Allow, a)
	}
	if s.frames == 0 || s.every <= 0 {
		return errors.New("--frames and --interval must be above 0")
	}
	if s.socket == "" {
		s.socket = socketOf(s.dev)
	}
	s.config = c
	return nil
}

// serveStatus is what the verb prints: when it is ready, and when it ends.
type serveStatus struct {
	State     string     `json:"state"` // "ready" or "ended"
	Interface string     `json:"interface"`
	Socket    string     `json:"socket"`
	PID       int        `json:"pid"`
	Queues    int        `json:"queues"`
	Mode      string     `json:"mode"` // of the steering program
	Bind      string     `json:"bind"`
	Allow     []string   `json:"allow"`
	Apps      []serveApp `json:"apps"`
	Admitted  uint64     `json:"admitted"`
	Refused   uint64     `json:"refused"`
	Received  uint64     `json:"received"`
	Unclaimed uint64     `json:"unclaimed"`
	// BadChecksum and Foreign were received too, and given to nobody.
	BadChecksum uint64 `json:"bad_checksum"`
	Foreign     uint64 `json:"foreign"`
	Frames      uint64 `json:"frames"`
}

// serveApp is one application.
type serveApp struct {
	Name       string   `json:"name"`
	PID        int      `json:"pid"`
	UID        int      `json:"uid"`
	Ports      []uint16 `json:"ports"`
	Frames     int      `json:"frames"`
	Loaned     int      `json:"loaned"`
	Sends      int      `json:"sends"`
	UnderWay   int      `json:"under_way"`
	Received   uint64   `json:"received"`
	Dropped    uint64   `json:"dropped"`
	Sent       uint64   `json:"sent"`
	SendFailed uint64   `json:"send_failed"`

	BadChecksum uint64 `json:"bad_checksum"`
}

func serveApps(s device.Stats) []serveApp {
	out := []serveApp{}
	for _, a := range s.Apps {
		ports := append([]uint16{}, a.Ports...)
		out = append(out, serveApp{a.Name, a.PID, a.UID, ports, a.Frames, a.Loaned, a.Sends,
			a.UnderWay, a.Received, a.NoFrame + a.NoRoom, a.Sent, a.SendFailed,
			a.BadChecksum})
	}
	return out
}

// serve runs until the context ends, or the device is gone.
func (s *serve) serve(cmd *cobra.Command) (err error) {
	ifi, err := net.InterfaceByName(s.dev)
	if err != nil {
		return deviceFailed(s.dev, fmt.Errorf("%w: %w", xdp.ErrNoDevice, err))
	}
	table, err := netif.OpenTable(ifi.Index, netif.TableOptions{})
	if err != nil {
		return deviceFailed(s.dev, err)
	}
	defer table.Close()
	s.config.Resolver = table
	stderr := cmd.ErrOrStderr()
	show := terminalOf(cmd.OutOrStdout())
	s.config.Report = func(err error) {
		if !show.on { // on a terminal the applications are seen
			fmt.Fprintf(stderr, "shmctl: serve %s: %v\n", printable(s.dev), err)
		}
	}
	l, err := s.listen()
	if err != nil {
		return deviceFailed(s.socket, err)
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	server, err := device.NewServer(cmd.Context(), s.config)
	if err != nil {
		return deviceFailed(s.dev, err)
	}
	if err := s.print(cmd, server, "ready"); err != nil {
		return errors.Join(err, server.Close())
	}
	notifyReady()
	served := make(chan error, 1)
	go func() { served <- server.Serve(cmd.Context(), l.UnixListener) }()
	err = s.follow(cmd, server, show, served)
	err = errors.Join(err, server.Close())
	if err != nil {
		return deviceFailed(s.dev, err)
	}
	return s.print(cmd, server, "ended")
}

// follow shows the applications on a terminal until serving ends.
func (s *serve) follow(cmd *cobra.Command, server *device.Server, t terminal,
	served <-chan error) error {
	var tick <-chan time.Time
	var scr screen
	if t.on && !s.json() {
		ticker := time.NewTicker(s.every)
		defer ticker.Stop()
		tick, scr.w = ticker.C, cmd.OutOrStdout()
		defer scr.close()
	}
	for {
		select {
		case err := <-served:
			if cmd.Context().Err() != nil { // we were asked to end
				return nil
			}
			return err
		case <-tick:
			now := terminalOf(cmd.OutOrStdout())
			if err := scr.draw(now, s.lines(server.Stats(), now.page())); err != nil {
				return err
			}
		}
	}
}

// lines is a table of the applications.
func (s *serve) lines(st device.Stats, p page) []string {
	apps := serveApps(st)
	slices.SortFunc(apps, func(a, b serveApp) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.PID, b.PID))
	})
	out := []string{fmt.Sprintf("%d applications, %d ever, %d refused", len(apps), st.Admitted,
		st.Refused)}
	if len(apps) == 0 {
		return out
	}
	t := &table{columns: []column{left("NAME", 0), right("PID", 1), right("UID", 2),
		left("PORTS", 3), right("RECEIVED", 0), right("DROPPED", 0), right("SENT", 0),
		right("LOANED", 4), right("SENDING", 5)}}
	for _, a := range apps {
		t.add(cut(printable(a.Name), 16), strconv.Itoa(a.PID), strconv.Itoa(a.UID),
			cut(fmt.Sprint(a.Ports), 12), s.number(a.Received), s.number(a.Dropped), s.number(a.Sent),
			fmt.Sprintf("%d/%d", a.Loaned, a.Frames), fmt.Sprintf("%d/%d", a.UnderWay, a.Sends))
	}
	return append(out, t.lines(true, p, "")...)
}

// print is the line at the beginning or the end.
func (s *serve) print(cmd *cobra.Command, server *device.Server, state string) error {
	st := server.Stats()
	v := serveStatus{State: state, Interface: st.Interface, Socket: s.socket, PID: os.Getpid(),
		Queues: st.Queues, Mode: st.Attached.String(), Bind: st.Bound.String(), Allow: []string{},
		Apps: serveApps(st), Admitted: st.Admitted, Refused: st.Refused, Received: st.Received,
		Unclaimed: st.Unclaimed, BadChecksum: st.BadChecksum, Foreign: st.Foreign,
		Frames: uint64(st.Queues) * uint64(s.frames)}
	for _, a := range s.config.Allow {
		v.Allow = append(v.Allow, a.String())
	}
	text := line("ended: %d applications, %d refused, %d packets received", v.Admitted, v.Refused,
		v.Received)
	if state == "ready" {
		text = line("serving %s (queues: %d, program: %s, sockets: %s) at %s", printable(st.Interface),
			st.Queues, v.Mode, v.Bind, printable(s.socket))
	}
	return s.output.print(cmd.OutOrStdout(), "serve", v, text)
}

// listen makes the socket, and the directory of the default path.
func (s *serve) listen() (*device.Listener, error) {
	if s.socket == socketOf(s.dev) {
		if err := os.MkdirAll(filepath.Dir(s.socket), 0o755); err != nil {
			return nil, err
		}
	}
	return device.Listen(s.socket)
}

// notifyReady tells systemd, if it waits (sd_notify).
func notifyReady() {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return
	}
	var d net.Dialer
	if c, err := d.DialContext(context.Background(), "unixgram", path); err == nil {
		_, _ = c.Write([]byte("READY=1\n"))
		_ = c.Close()
	}
}

// socketOf is where "shmctl serve" listens for an interface, unless it is told another path.
func socketOf(ifname string) string { return "/run/shmring/" + ifname + ".sock" }
