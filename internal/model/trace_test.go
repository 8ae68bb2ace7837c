package model

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
)

// interleaving searches breadth first, so what it returns is a shortest run to a loss.
func interleaving[S comparable](p protocol[S]) string {
	type origin struct {
		from int
		who  uint8
		at   step
	}
	seen := newStateSet[S]()
	defer seen.done()
	states, origins := []S{p.start()}, []origin{{from: -1}}
	seen.add(&states[0])
	x := newSearch(p)
	i := 0
	x.found = func(n *S) {
		if seen.add(n) {
			states, origins = append(states, *n), append(origins, origin{i, x.who, x.at})
		}
	}
	for ; i < len(states); i++ {
		s := states[i]
		if p.judge(&s) < lost {
			x.expand(&s)
			continue
		}
		var run []string
		name := stepNames(p.steps())
		for j := i; origins[j].from >= 0; j = origins[j].from {
			run = append(run, p.actor(origins[j].who)+" "+name(origins[j].at))
		}
		var b strings.Builder
		for j := len(run) - 1; j >= 0; j-- {
			fmt.Fprintf(&b, "\n  %2d  %s", len(run)-j, run[j])
		}
		fmt.Fprintf(&b, "\n  %+v", s)
		return b.String()
	}
	return " none"
}

// stepNames says what steps are called: their constants, which stand in one declaration that begins
// with first, and the comments behind these.
func stepNames(first string) func(step) string {
	files, err := filepath.Glob("*_test.go")
	var names []string
	for _, file := range files {
		f, bad := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
		if bad != nil {
			err = bad
			continue
		}
		ast.Inspect(f, func(n ast.Node) bool {
			d, ok := n.(*ast.GenDecl)
			if !ok || d.Tok != token.CONST || d.Specs[0].(*ast.ValueSpec).Names[0].Name != first {
				return !ok
			}
			for _, s := range d.Specs {
				v := s.(*ast.ValueSpec)
				names = append(names, strings.TrimSpace(v.Names[0].Name+" "+v.Comment.Text()))
			}
			return false
		})
	}
	return func(at step) string {
		if int(at) < len(names) {
			return names[at]
		}
		return fmt.Sprint("step ", uint8(at), " ", err)
	}
}
