package cq_test

import (
	"context"
	"testing"

	"github.com/shmring/shmring/cq"
)

// TestPlaces: who is put out, and who is refused.
func TestPlaces(t *testing.T) {
	p := cq.NewPlaces(4)
	var out []string
	take := func(name string, user int) (leave func(), err error) {
		return p.Take(user, func(why error) {
			wantErr(t, name, why, cq.ErrBusy)
			out = append(out, name)
		})
	}
	var leave []func()
	for _, tt := range []struct {
		name string
		user int
		out  string // who goes for it
		busy bool
	}{
		{"a1", 1, "", false}, {"b1", 2, "", false}, {"a2", 1, "", false}, {"a3", 1, "", false},
		{"a4", 1, "", true}, // its own user has most
		{"c1", 3, "a1", false},
		{"c2", 3, "a2", false}, // a has two, c has one
		{"a4", 1, "c1", false},
		{"d1", 4, "a3", false},
	} {
		out = nil
		l, err := take(tt.name, tt.user)
		if tt.busy {
			wantErr(t, tt.name, err, cq.ErrBusy)
		} else if err != nil {
			t.Error(tt.name, err)
		} else {
			leave = append(leave, l)
		}
		if len(out) > 1 || len(out) == 1 && out[0] != tt.out || len(out) == 0 && tt.out != "" {
			t.Errorf("%s put out %v, want %q", tt.name, out, tt.out)
		}
	}
	for _, l := range leave { // also of those who were put out
		l()
		l()
	}
	if n := p.Free(); n != 4 {
		t.Errorf("%d are free", n)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	if err := p.Await(ctx); err != nil {
		t.Error(err)
	}
	for range 4 {
		_, err := take("", 0)
		must(t, err)
	}
	cancel(cq.ErrClosed)
	wantErr(t, "await", p.Await(ctx), cq.ErrClosed)
}
