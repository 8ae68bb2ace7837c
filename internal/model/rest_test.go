package model

import "testing"

// trapped counts the states from which nothing that may happen leads to rest any more.
func trapped[S comparable](p protocol[S]) (n int) {
	index := map[S]int32{p.start(): 0}
	states := []S{p.start()}
	var before [][]int32 // of each state, those that it may follow
	var free []int32     // can come to rest, and those before them have not been told
	x := newSearch(p)
	var i int32
	x.found = func(s *S) {
		to, known := index[*s]
		if !known {
			to = int32(len(states))
			index[*s] = to
			states = append(states, *s)
		}
		for int(to) >= len(before) {
			before = append(before, nil)
		}
		before[to] = append(before[to], i)
	}
	for ; int(i) < len(states); i++ {
		s := states[i]
		if v := p.judge(&s); v == resting || v == over {
			free = append(free, i)
		}
		x.expand(&s)
	}
	rests := make([]bool, len(states))
	for len(free) > 0 {
		last := free[len(free)-1]
		free = free[:len(free)-1]
		if !rests[last] {
			rests[last] = true
			free = append(free, before[last]...)
		}
	}
	for _, r := range rests {
		if !r {
			n++
		}
	}
	return n
}

// TestComesToRest: whatever has happened, there is a way on that ends with nobody awake. Larger
// forms need more memory than this is worth.
func TestComesToRest(t *testing.T) {
	for _, f := range families {
		for _, v := range f.variants {
			id := f.id(v)
			if n, ok := recorded(id); !ok || n > 40_000 {
				continue
			}
			t.Run(id, func(t *testing.T) {
				t.Parallel()
				if n := v.trapped(nil); n > 0 {
					t.Errorf("%d states lead to no rest", n)
				}
			})
		}
	}
}

// TestTraps: somebody goes round for ever.
func TestTraps(t *testing.T) {
	for _, f := range families {
		for _, m := range f.traps {
			for _, v := range f.bases(t, m) {
				t.Run(f.id(v)+"/"+m.text, func(t *testing.T) {
					t.Parallel()
					if v.trapped(m.bug) == 0 {
						t.Error("whatever happens it can come to rest")
					}
				})
			}
		}
	}
}

// chase goes round between two states, from which there is a way out or none.
type chase struct{ forever bool }

func (chase) start() uint8                    { return 0 }
func (chase) actor(uint8) string              { return "one" }
func (chase) steps() string                   { return "app" }
func (c chase) with(bug bool) protocol[uint8] { return chase{bug} }

func (c chase) judge(s *uint8) verdict {
	if *s == 3 {
		return resting
	}
	return moving
}

// next goes round 1 and 2, and to rest from 0, or from 2 if it does not go round for ever.
func (c chase) next(s *uint8, x *search[uint8]) {
	for _, to := range [...][]uint8{{1, 3}, {2}, {1, 3}, {}}[*s] {
		if n := x.fork(s); !c.forever || *s != 2 || to != 3 {
			*n = to
			x.emit(n)
		}
	}
}

func TestTrapped(t *testing.T) {
	for forever, want := range map[bool]int{false: 0, true: 2} {
		if n := of(chase{}.with).trapped(forever); n != want {
			t.Errorf("round for ever %v: %d states lead to no rest, want %d", forever, n, want)
		}
	}
}
