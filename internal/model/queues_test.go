package model

import (
	"strings"
	"testing"
)

const (
	producerPays = "producer pays"
	readerPays   = "reader pays"
)

// queue is a form of the bell of a queue. It is explored twice: with sequentially consistent
// publishes, and with plain ones that the reader pays for.
type queue struct {
	key, text string
	model     interface{ with(plain bool) explored }
}

var queues = family{title: "Queues", variants: bothPay(queueTable), mutants: queueMutants,
	spare: queueSpare}

func bothPay(queues []queue) (vs []variant) {
	for _, q := range queues {
		if b, ok := q.model.(bell); !ok || !b.paidOnly {
			vs = append(vs, variant{q.key, q.text, producerPays, q.model.with(false)})
		}
		vs = append(vs, variant{q.key, q.text, readerPays, q.model.with(true)})
	}
	return vs
}

// TestPrintsInterleavings keeps the report of a loss working: it is what a failure needs.
func TestPrintsInterleavings(t *testing.T) {
	v := queues.bases(t, mutant{base: "a", plain: true})[0]
	run := v.trace(noBarrier)
	t.Logf("plain publish and nobody pays:%s", run)
	for _, want := range []string{"reader 0   R4t read the tails", "visible", "armed:"} {
		if !strings.Contains(run, want) {
			t.Errorf("the run does not show %q", want)
		}
	}
}
