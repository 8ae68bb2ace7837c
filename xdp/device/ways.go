package device

import (
	"container/list"
	"errors"
	"net/netip"

	"github.com/shmring/shmring/internal/packet"
	"github.com/shmring/shmring/xdp"
)

// forgetter is a Resolver that can be told that nobody needs a destination, as *netif.Table can.
type forgetter interface{ Forget(dst netip.Addr) }

// maxAsking bounds for how many hardware addresses one line of the allow-list waits at a time: the
// kernel is asked for one after the other, so other lines wait behind those.
const maxAsking = 256

// holders says how many lines of the allow-list use a destination. The engine's goroutine alone
// uses it, and ways.
type holders struct {
	resolver xdp.Resolver
	forgets  forgetter // nil if it is none
	uses     map[netip.Addr]int
}

func newHolders(r xdp.Resolver) *holders {
	h := &holders{resolver: r, uses: map[netip.Addr]int{}}
	h.forgets, _ = r.(forgetter)
	return h
}

// ways are the destinations that one line of the allow-list has the resolver remember. What it
// remembers is bounded, and remembered for minutes: so that nobody fills it for everybody, a line
// that wants one too many has its own oldest one forgotten.
type ways struct {
	all    *holders
	limit  int
	held   map[netip.Addr]*list.Element // of *way
	recent list.List                    // used last first
	asking int
}

type way struct {
	to     netip.Addr
	asking bool // there is no answer yet
}

func newWays(all *holders, limit int) *ways {
	return &ways{all: all, limit: limit, held: map[netip.Addr]*list.Element{}}
}

// lookup is Resolver.Lookup within the bounds of the line. packet.ErrResolving also says that there
// are too many questions already.
func (w *ways) lookup(to netip.Addr) (xdp.Hop, error) {
	if w.all.forgets == nil {
		return w.all.resolver.Lookup(to)
	}
	el := w.held[to]
	if el == nil {
		if w.asking >= min(maxAsking, w.limit) {
			return xdp.Hop{}, packet.ErrResolving
		}
		for len(w.held) >= w.limit {
			w.drop(w.recent.Back())
		}
		el = w.recent.PushFront(&way{to: to})
		w.held[to] = el
		w.all.uses[to]++
	} else if el != w.recent.Front() {
		w.recent.MoveToFront(el)
	}
	hop, err := w.all.resolver.Lookup(to)
	w.ask(el.Value.(*way), err != nil && errors.Is(err, packet.ErrResolving))
	return hop, err
}

func (w *ways) ask(one *way, asking bool) {
	if one.asking == asking {
		return
	}
	if one.asking = asking; asking {
		w.asking++
	} else {
		w.asking--
	}
}

// giveUp ends the wait for an answer.
func (w *ways) giveUp(to netip.Addr) {
	if el := w.held[to]; el != nil && el.Value.(*way).asking {
		w.drop(el)
	}
}

func (w *ways) drop(el *list.Element) {
	one := w.recent.Remove(el).(*way)
	w.ask(one, false)
	delete(w.held, one.to)
	if w.all.uses[one.to]--; w.all.uses[one.to] == 0 {
		delete(w.all.uses, one.to)
		w.all.forgets.Forget(one.to)
	}
}
