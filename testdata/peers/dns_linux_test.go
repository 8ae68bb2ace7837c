package peers

import (
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/shmring/shmring/internal/shmtest"
)

const zone = "example.org."

// answer returns a text of the length that the name asks for.
func answer(w dns.ResponseWriter, q *dns.Msg) {
	m := new(dns.Msg)
	m.SetReply(q)
	name := q.Question[0].Name
	var n, size int
	if _, err := fmt.Sscanf(name, "q%d-%d.", &n, &size); err != nil {
		m.Rcode = dns.RcodeNameError
		_ = w.WriteMsg(m)
		return
	}
	m.Answer = []dns.RR{&dns.TXT{Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeTXT,
		Class: dns.ClassINET, Ttl: 60}, Txt: pieces(n, size)}}
	_ = w.WriteMsg(m)
}

func pieces(n, size int) (out []string) {
	text := strings.Repeat(fmt.Sprint(n%10), size)
	for len(text) > 200 {
		out, text = append(out, text[:200]), text[200:]
	}
	return append(out, text)
}

// TestDNS: a name server of miekg/dns on one host, its clients on the other.
func TestDNS(t *testing.T) {
	shmtest.Conforms(t)
	for _, c := range sides {
		t.Run(c.name, func(t *testing.T) {
			h := newHosts(t, c.who)
			started := make(chan struct{})
			srv := &dns.Server{PacketConn: h.listen(0, 53), Handler: dns.HandlerFunc(answer),
				NotifyStartedFunc: func() { close(started) }}
			done := make(chan error, 1)
			go func() { done <- srv.ActivateAndServe() }()
			<-started
			var wg sync.WaitGroup
			for w := range 4 {
				conn := h.dial(1, 0, h.addr(0, 53))
				wg.Go(func() { ask(t, conn, w) })
			}
			wg.Wait()
			// Shutdown waits for a read that a past deadline ends.
			must(t, srv.Shutdown())
			select {
			case err := <-done:
				must(t, err)
			case <-time.After(long):
				t.Fatal("the server goes on")
			}
		})
	}
}

func ask(t *testing.T, conn net.Conn, worker int) {
	c := &dns.Client{Timeout: long, UDPSize: 1400}
	co := &dns.Conn{Conn: conn, UDPSize: 1400}
	for i := range 100 {
		n, size := worker*1000+i, i*12
		q := new(dns.Msg).SetQuestion(fmt.Sprintf("q%d-%d.%s", n, size, zone), dns.TypeTXT)
		q.SetEdns0(1400, false)
		r, _, err := c.ExchangeWithConn(q, co)
		if err != nil {
			t.Errorf("query %d: %v", n, err)
			return
		}
		txt, ok := r.Answer[0].(*dns.TXT)
		if got, want := strings.Join(txt.Txt, ""), strings.Join(pieces(n, size), ""); !ok ||
			got != want {
			t.Errorf("query %d: %d bytes, want %d", n, len(got), len(want))
		}
	}
}
