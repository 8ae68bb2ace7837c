package cq_test

import (
	"context"
	"io"
	"log"
	"maps"
	"os"
	"os/exec"
	"strconv"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// What examples call another process is one: this binary, started in one of these roles.
func init() {
	maps.Copy(roles, map[string]func(){
		"example orders":   produceOrders,
		"example producer": produce,
		"example consumer": consume,
	})
}

const (
	envName   = "SHMRING_EXAMPLE_NAME"
	envNumber = "SHMRING_EXAMPLE_NUMBER"
)

// another prepares a process in a role. Under the race detector it does not take its time to end.
func another(role string, env ...string) *exec.Cmd {
	cmd, err := shmtest.Command(context.Background(), role,
		append(env, "GORACE=atexit_sleep_ms=0")...)
	if err != nil {
		log.Fatal(err)
	}
	return cmd
}

// producer has another process post n entries, and waits until it did.
func producer(name string, n int) {
	cmd := another("example producer", envName+"="+name, envNumber+"="+strconv.Itoa(n))
	if err := cmd.Run(); err != nil {
		log.Fatal(err)
	}
}

func produce() {
	dir, err := shm.OpenDir("")
	if err != nil {
		log.Fatal(err)
	}
	w, err := cq.Attach(context.Background(), dir, os.Getenv(envName), cq.WriterOptions{})
	if err != nil {
		log.Fatal(err)
	}
	n, err := strconv.Atoi(os.Getenv(envNumber))
	if err != nil {
		log.Fatal(err)
	}
	for i := range uint64(n) {
		if err := w.Post(&cq.Entry{Context: i, Flags: cq.FlagSend | cq.FlagMsg}); err != nil {
			log.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		log.Fatal(err)
	}
}

// consumer has another process create a queue and keep it until stop.
func consumer(name string) (stop func()) {
	cmd := another("example consumer", envName+"="+name)
	in, err := cmd.StdinPipe()
	if err != nil {
		log.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		log.Fatal(err)
	}
	return func() {
		_ = in.Close()
		if err := cmd.Wait(); err != nil {
			log.Fatal(err)
		}
	}
}

func consume() {
	q := open(os.Getenv(envName))
	_, _ = io.Copy(io.Discard, os.Stdin)
	if err := q.Close(); err != nil {
		log.Fatal(err)
	}
}
