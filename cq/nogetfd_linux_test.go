package cq_test

import "testing"

// TestOwnWriterNeedsNoPermission: a process reaches its own bell also where the kernel lets nobody
// take descriptors from processes.
func TestOwnWriterNeedsNoPermission(t *testing.T) {
	c := startChild(t, "nogetfd", envQueue+"="+queueName(t))
	for _, kind := range []string{"with a name", "without one"} {
		line, err := c.out.ReadString('\n')
		if err != nil || line != "cq: timed out 1 <nil>\n" {
			t.Errorf("%s: %q, %v", kind, line, err)
		}
	}
	must(t, c.Wait())
}
