package device_test

import (
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/shmring/shmring/internal/shmtest"
)

// ask sends datagrams to an application and waits for its answers.
func ask(t testing.TB, c *net.UDPConn, r *remote, port uint16, count int) {
	t.Helper()
	for i := range count {
		want := fmt.Sprintf("question %d to %d", i, port)
		for tries := 0; ; tries++ { // while a server starts, packets are lost
			if _, err := c.WriteToUDPAddrPort([]byte(want), r.target(port)); err != nil {
				t.Fatal(err)
			}
			err := answered(t, c, r, want)
			if err == nil {
				break
			}
			if tries == 300 {
				t.Fatalf("no answer to %q: %v", want, err)
			}
		}
	}
}

// answered waits for the answer that repeats want. Before it there may be late ones, of questions
// that were asked twice; each comes from whom it was asked.
func answered(t testing.TB, c *net.UDPConn, r *remote, want string) error {
	t.Helper()
	buf := make([]byte, 2048)
	must(t, c.SetReadDeadline(time.Now().Add(200*time.Millisecond)))
	for {
		n, from, err := c.ReadFromUDPAddrPort(buf)
		if err != nil {
			return err
		}
		var i int
		var asked uint16
		got := string(buf[:n])
		_, err = fmt.Sscanf(got, "question %d to %d", &i, &asked)
		if err != nil || from != r.target(asked) {
			t.Fatalf("got %q from %v", got, from)
		}
		if got == want {
			return nil
		}
	}
}

// TestUnprivilegedApplications: processes of a user without privilege send and receive through a
// device process of root, with a kernel socket at the other end of the wire, and go on with the
// next device process when the first one is killed.
func TestUnprivilegedApplications(t *testing.T) {
	shmtest.Conforms(t)
	r := newRemote(t)
	server := r.serve()
	a, b := startApp(t, r.path, 5001), startApp(t, r.path, 5002)
	peer := udp(t, r.pair.A, 6000)
	ask(t, peer, r, 5001, 200)
	ask(t, peer, r, 5002, 200)
	for range 3 {
		server.kill()
		server = r.serve()
		ask(t, peer, r, 5001, 20)
		ask(t, peer, r, 5002, 20)
	}
	a.kill()
	ask(t, peer, r, 5002, 20)
	must(t, b.in.Close()) // it leaves by itself
	must(t, b.cmd.Wait())
	c := startApp(t, r.path, 5002)
	ask(t, peer, r, 5002, 20)
	server.end()
	server = r.serve() // also after one that was not killed
	ask(t, peer, r, 5002, 20)
	c.kill()
	server.end()
}
