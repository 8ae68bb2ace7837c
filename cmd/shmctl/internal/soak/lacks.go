package soak

import (
	"slices"
	"strings"
	"sync"

	"github.com/shmring/shmring/cmd/shmctl/internal/torture"
)

// lacking tells why a role cannot take part here; it is found out once.
var lacking = func() func(string) error {
	all := sync.OnceValue(func() map[string]error {
		lacks := map[string]error{}
		for _, name := range torture.Roles() {
			lacks[name] = torture.Lacks(name)
		}
		return lacks
	})
	return func(name string) error { return all()[name] }
}()

// able leaves those roles out of casts that cannot take part, and casts of nobody else.
func able(casts [][]string, lacks func(string) error) (all [][]string) {
	for _, c := range casts {
		can := slices.DeleteFunc(slices.Clone(c), func(name string) bool { return lacks(name) != nil })
		if len(can) > 0 || len(c) == 0 {
			all = append(all, can)
		}
	}
	return all
}

// without says which roles cannot take part, a text for each reason.
func without(roles []string, lacks func(string) error) (texts []string) {
	names := map[string][]string{}
	var reasons []string
	for _, name := range roles {
		if err := lacks(name); err != nil {
			if len(names[err.Error()]) == 0 {
				reasons = append(reasons, err.Error())
			}
			names[err.Error()] = append(names[err.Error()], name)
		}
	}
	for _, why := range reasons {
		texts = append(texts, strings.Join(names[why], ", ")+": "+why)
	}
	return texts
}
