package device_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/xdp/device"
)

// appChild is an application in a process of its own: it answers every datagram to its port with
// the same payload, until it is killed, or has nobody at its standard input.
func appChild() error {
	port, err := strconv.ParseUint(os.Getenv("PORT"), 10, 16)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	request := device.Request{Name: "echo", Ports: []uint16{uint16(port)},
		InPlace: os.Getenv("IN_PLACE") != ""}
	if !request.InPlace {
		if err := unprivileged(); err != nil {
			return err
		}
	}
	e, err := device.Dial(ctx, os.Getenv("PATH_OF"), request)
	for errors.Is(err, device.ErrPortTaken) { // by one that was killed a moment ago
		time.Sleep(5 * time.Millisecond)
		e, err = device.Dial(ctx, os.Getenv("PATH_OF"), request)
	}
	if err != nil {
		return err
	}
	defer e.Close()
	fmt.Println("ready")
	go func() {
		var b [1]byte
		_, _ = os.Stdin.Read(b[:])
		cancel()
	}()
	hold := os.Getenv("HOLD") != "" // never gives a frame back
	var es [16]cq.Entry
	for {
		n, err := cq.ReadContext(ctx, e.Queue(), es[:], cq.ReadOptions{})
		if errors.Is(err, context.Canceled) {
			return nil
		}
		if errors.Is(err, cq.ErrAvail) {
			var x cq.ErrorEntry
			if err := e.Queue().ReadErr(&x); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return err
		}
		for i := range es[:n] {
			if es[i].Flags&cq.FlagFrame == 0 || hold {
				continue
			}
			if err := answer(e, &es[i]); err != nil {
				return err
			}
		}
	}
}

func unprivileged() error {
	if os.Geteuid() == 0 {
		return errors.New("this is root")
	}
	if s, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW, 0); err == nil {
		return fmt.Errorf("socket %d: this process has the privilege that it should not need", s)
	}
	return nil
}

func answer(e *device.Endpoint, entry *cq.Entry) error {
	rec, err := e.Record(entry)
	if err != nil {
		return err
	}
	loan, err := e.View(entry)
	if err != nil {
		return err
	}
	for err = e.SendTo(loan.Bytes(), rec.Src, 0); errors.Is(err, device.ErrNoSlot); {
		time.Sleep(20 * time.Microsecond)
		err = e.SendTo(loan.Bytes(), rec.Src, 0)
	}
	loan.Release()
	if err != nil && !errors.Is(err, device.ErrServerGone) {
		return err
	}
	if err := e.Release(entry); err != nil && !errors.Is(err, device.ErrServerGone) {
		return err
	}
	return nil
}
