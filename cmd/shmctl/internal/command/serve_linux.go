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
	name, queues, attached, bound := server.Interface()
	st := server.Stats()
	v := serveStatus{State: state, Interface: name, Socket: s.socket, PID: os.Getpid(),
		Queues: queues, Mode: attached.String(), Bind: bound.String(), Allow: []string{},
		Apps: serveApps(st), Admitted: st.Admitted, Refused: st.Refused, Received: st.Received,
		Unclaimed: st.Unclaimed, BadChecksum: st.BadChecksum, Foreign: st.Foreign,
		Frames: uint64(queues) * uint64(s.frames)}
	for _, a := range s.config.Allow {
		v.Allow = append(v.Allow, a.String())
	}
	text := line("ended: %d applications, %d refused, %d packets received", v.Admitted, v.Refused,
		v.Received)
	if state == "ready" {
		text = line("serving %s (queues: %d, program: %s, sockets: %s) at %s", printable(name), queues,
			v.Mode, v.Bind, printable(s.socket))
	}
	return s.output.print(cmd.OutOrStdout(), "serve", v, text)
}

// listen makes the socket, and the directory of the default path.
func (s *serve) listen() (*device.Listener, error) {
	if s.socket == device.DefaultPath(s.dev) {
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
