package cq_test

import (
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

const envRegion = "SHMRING_TEST_REGION"

func init() {
	maps.Copy(roles, map[string]func(){"memory-peer": childMemoryPeer})
}

// childMemoryPeer maps the region of a descriptor, by name or, without one, by the descriptor that
// it was started with. It says what it finds, and puts its answer there if it may.
func childMemoryPeer() {
	text, err := hex.DecodeString(os.Getenv(envRegion))
	need(err)
	desc, err := cq.ParseMemoryDescriptor(text)
	need(err)
	var obj *shm.Object
	if name := os.Getenv(envQueue); name != "" {
		d, err := shm.OpenDir("")
		need(err)
		obj, err = d.Open(name, shm.ReadOnly)
		need(err)
	} else {
		obj, err = shm.OpenFD(3, "inherited", shm.ReadOnly)
		need(err)
	}
	p, err := cq.OpenMemory(desc, obj)
	need(err)
	need(obj.Close())
	say("%s", p.Bytes()[:4])
	stored := shm.Guard(func() { copy(p.Bytes()[4:], "pong") }) == nil
	say("%v %v", p.Writable(), stored)
	need(p.Close())
}

// TestMemoryInOtherProcess: a descriptor means the same bytes in another process, however that got
// the object, with the rights of the region.
func TestMemoryInOtherProcess(t *testing.T) {
	for _, place := range []string{"named", "memfd"} {
		for _, access := range []cq.Flags{cq.FlagRemoteRead, allRemote} {
			t.Run(place+" "+access.String(), func(t *testing.T) {
				var d *shm.Dir
				env := []string{envQueue + "="}
				if place == "named" {
					d = openDir(t)
					env[0] += "mr." + queueName(t)
				}
				obj, at := payload(t, d)
				r := register(t, obj, cq.MemoryOptions{Offset: at + 4100, Length: 8, Access: access})
				mem, err := r.View(0, 8, access)
				must(t, err)
				copy(mem, "ping")
				desc, err := r.Describe()
				must(t, err)
				env = append(env, envRegion+"="+hex.EncodeToString(desc.AppendTo(nil)))
				cmd := shmtest.Child(t, "memory-peer", env...)
				if d == nil {
					f, err := os.Open(fmt.Sprint("/proc/self/fd/", obj.FD()))
					must(t, err)
					defer f.Close()
					cmd.ExtraFiles = []*os.File{f}
				}
				c := start(t, cmd)
				if got := c.line(t); got != "ping" {
					t.Errorf("it found %q", got)
				}
				want, answer := "false false", "\x00\x00\x00\x00"
				if access == allRemote {
					want, answer = "true true", "pong"
				}
				if got := c.line(t); got != want || string(mem[4:]) != answer {
					t.Errorf("writable and written: %s; the answer is %q", got, mem[4:])
				}
				_ = c.stop(t)
			})
		}
	}
}
