package cq_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/shmring/shmring/testdata"
)

// TestConformanceTable: every test that a row or a reason names exists, and so does every symbol
// where a reason says that a deviation is documented. That the tests also ran is shmtest's part.
func TestConformanceTable(t *testing.T) {
	t.Parallel()
	rows, err := testdata.Conformance()
	must(t, err)
	src := sources{tests: map[string]map[string]bool{}}
	symbols := regexp.MustCompile(`\b(cq|shm|doorbell)\.([A-Z]\w*)((?:\.\w+)?)`)
	for _, r := range rows {
		for _, name := range r.Tests() {
			if !src.has(t, name) {
				t.Errorf("%s: no test %s", r.ID, name)
			}
		}
		for _, s := range symbols.FindAllStringSubmatch(r.Ref, -1) {
			if !strings.HasPrefix(s[2], "Test") && !src.declares(t, s[1], s[2]+s[3]) {
				t.Errorf("%s: no symbol %s", r.ID, s[0])
			}
		}
	}
}

// sources are the packages of this module, parsed when asked about.
type sources struct {
	tests   map[string]map[string]bool // by package and test or variable, the words in it
	symbols map[string]bool
	// embedded are the structs in a struct of the same package, whose symbols it has too.
	embedded map[string][]string
	files    token.FileSet
}

// has reports whether a test, named as package.TestX/case, exists. A case exists if its name is a
// literal of the function, or of a variable of the package that the function names.
func (s *sources) has(t *testing.T, ref string) bool {
	pkg, name, _ := strings.Cut(ref, ".")
	name, sub, _ := strings.Cut(name, "/")
	if s.tests[pkg+"."] == nil {
		s.parse(t, pkg, "_test.go")
		s.tests[pkg+"."] = map[string]bool{}
	}
	in := s.tests[pkg+"."+name]
	if in == nil || sub == "" || in[sub] {
		return in != nil
	}
	for word := range in {
		if v, ok := strings.CutPrefix(word, "*"); ok && s.tests[pkg+"."+v][sub] {
			return true
		}
	}
	return false
}

// declares reports whether a package has an exported symbol, as Name, Type.Method or Type.Field.
func (s *sources) declares(t *testing.T, pkg, name string) bool {
	if s.symbols == nil {
		s.symbols, s.embedded = map[string]bool{}, map[string][]string{}
	}
	if !s.symbols[pkg] {
		s.symbols[pkg] = true
		s.parse(t, pkg, ".go")
	}
	if of, member, is := strings.Cut(name, "."); is {
		for _, embedded := range s.embedded[pkg+"."+of] {
			if s.symbols[pkg+"."+embedded+"."+member] {
				return true
			}
		}
	}
	return s.symbols[pkg+"."+name]
}

func (s *sources) parse(t *testing.T, pkg, suffix string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", filepath.FromSlash(pkg), "*"+suffix))
	must(t, err)
	for _, name := range files {
		f, err := parser.ParseFile(&s.files, name, nil, parser.SkipObjectResolution)
		must(t, err)
		for _, d := range f.Decls {
			if suffix == "_test.go" {
				s.addTest(pkg, d)
			} else if !strings.HasSuffix(name, "_test.go") {
				s.addSymbols(pkg, d)
			}
		}
	}
}

func (s *sources) addTest(pkg string, d ast.Decl) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Recv == nil && strings.HasPrefix(d.Name.Name, "Test") {
			s.tests[pkg+"."+d.Name.Name] = wordsOf(d)
		}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			if v, ok := spec.(*ast.ValueSpec); ok && d.Tok == token.VAR && len(v.Names) == 1 {
				s.tests[pkg+"."+v.Names[0].Name] = wordsOf(v)
			}
		}
	}
}

// wordsOf returns the texts that stand in n, and each name in it with a star before it.
func wordsOf(n ast.Node) map[string]bool {
	out := map[string]bool{}
	ast.Inspect(n, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Ident:
			out["*"+n.Name] = true
		case *ast.BasicLit:
			if text, err := strconv.Unquote(n.Value); n.Kind == token.STRING && err == nil {
				out[strings.ReplaceAll(text, " ", "_")] = true
			}
		}
		return true
	})
	return out
}

func (s *sources) addSymbols(pkg string, d ast.Decl) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		name := d.Name.Name
		if d.Recv != nil {
			of := d.Recv.List[0].Type
			if p, ok := of.(*ast.StarExpr); ok {
				of = p.X
			}
			if id, ok := of.(*ast.Ident); ok {
				name = id.Name + "." + name
			}
		}
		s.symbols[pkg+"."+name] = true
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch spec := spec.(type) {
			case *ast.TypeSpec:
				s.symbols[pkg+"."+spec.Name.Name] = true
				s.addFields(pkg+"."+spec.Name.Name+".", spec.Type)
			case *ast.ValueSpec:
				for _, id := range spec.Names {
					s.symbols[pkg+"."+id.Name] = true
				}
			}
		}
	}
}

func (s *sources) addFields(prefix string, of ast.Expr) {
	st, ok := of.(*ast.StructType)
	if !ok {
		return
	}
	for _, f := range st.Fields.List {
		for _, id := range f.Names {
			s.symbols[prefix+id.Name] = true
		}
		if id, is := f.Type.(*ast.Ident); is && len(f.Names) == 0 {
			of := strings.TrimSuffix(prefix, ".")
			s.embedded[of] = append(s.embedded[of], id.Name)
		}
	}
}
