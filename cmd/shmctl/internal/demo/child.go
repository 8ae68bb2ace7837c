package demo

import (
	"fmt"

	"github.com/shmring/shmring/internal/stage"
)

const toolName = "demo"

// Tool is what the processes of a demonstration do.
var Tool = stage.Tool{Name: toolName, Play: func(c *stage.Child) error {
	l := newLine(c)
	var cfg config
	err := c.Script(&cfg)
	if run, ok := roles[c.Role]; ok && err == nil {
		err = run(l, cfg)
	} else if err == nil {
		err = fmt.Errorf("no role %q", c.Role)
	}
	if err != nil {
		l.send(event{Is: "error", Error: err.Error()})
	}
	return err
}}

var roles = map[string]func(*line, config) error{
	"application": runApplication,
	"device":      runDevice,
	"producer":    runProducer,
	"peer":        runPeer,
}
