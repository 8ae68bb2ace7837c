package testdata

import (
	"go/ast"
	"go/doc"
	"go/doc/comment"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// room is what the comments of one package may name.
type room struct {
	dir   string
	name  string
	names map[string]bool // of the package, and Type.Member; Type.* where that cannot be known
	// embeds are the types of the package that a type embeds.
	embeds map[string][]string
}

// TestCommentsNameWhatIs: a comment of something begins with its name, as go doc shows it, and each
// link of a comment leads to something that is there. It sees all files, whatever system they are
// for.
func TestCommentsNameWhatIs(t *testing.T) {
	set, links := token.NewFileSet(), 0
	rooms, files := declared(t, set)
	for dir, of := range files {
		for _, f := range of {
			imports := map[string]*room{}
			for _, i := range f.Imports {
				path, ours := strings.CutPrefix(strings.Trim(i.Path.Value, `"`),
					"github.com/shmring/shmring/")
				if other := rooms[filepath.Join("..", path)]; ours && other != nil {
					imports[other.name] = other
				}
			}
			for _, c := range f.Comments {
				links += rooms[dir].follow(t, set, c, imports)
			}
			for _, d := range f.Decls {
				begins(t, set, d)
			}
		}
	}
	if links < 200 {
		t.Errorf("only %d links were followed", links)
	}
}

// declared parses all program files of the module, by directory.
func declared(t *testing.T, set *token.FileSet) (map[string]*room, map[string][]*ast.File) {
	t.Helper()
	rooms, files := map[string]*room{}, map[string][]*ast.File{}
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		f, err := parser.ParseFile(set, path, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		dir := filepath.Dir(path)
		if rooms[dir] == nil {
			rooms[dir] = &room{dir: dir, name: f.Name.Name, names: map[string]bool{},
				embeds: map[string][]string{}}
		}
		rooms[dir].declares(f)
		files[dir] = append(files[dir], f)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return rooms, files
}

// aName is a name of Go as a page quotes it: with or without a package, a member, a call.
var aName = regexp.MustCompile(`^(?:(shm|ring|doorbell|wake|cq|ctl|xdp|endpoint|device|udp|kind)` +
	`\.)?` +
	`([A-Z]\w*[a-z]\w*(?:\.[A-Z]\w*)?)(?:\(.*\))?$`)

// inText is a name of Go, of a package that it says, in the reason of a row.
var inText = regexp.MustCompile(`\b(?:shm|doorbell|cq)\.[A-Z]\w*(?:\.[A-Z]\w*)?`)

// TestDocumentsNameGo: types, functions and fields that a page names are there, and those of the
// reasons why demands of manual pages are not met to the letter.
func TestDocumentsNameGo(t *testing.T) {
	rooms, _ := declared(t, token.NewFileSet())
	seen, pages := 0, documents(t)
	rows, err := Conformance()
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		for _, name := range inText.FindAllString(r.Ref, -1) {
			pages["conformance.tsv"] += "`" + name + "`\n"
		}
	}
	for page, text := range pages {
		for _, m := range quoted.FindAllStringSubmatch(text, -1) {
			name := aName.FindStringSubmatch(m[1])
			if name == nil || isTest.MatchString(m[1]) || strings.HasPrefix(name[2], "Test") {
				continue
			}
			seen++
			found := false
			for _, r := range rooms {
				found = found || (name[1] == "" || name[1] == r.name) &&
					(r.has(name[2]) || !strings.Contains(name[2], ".") && r.member(name[2]))
			}
			if !found {
				t.Errorf("%s: there is no %s", page, m[1])
			}
		}
	}
	if seen < 100 {
		t.Errorf("only %d names were looked up", seen)
	}
}

// member reports whether a type of the package has something of that name.
func (r *room) member(name string) bool {
	for n := range r.names {
		if _, m, _ := strings.Cut(n, "."); m == name {
			return true
		}
	}
	return false
}

// declares notes what a file declares.
func (r *room) declares(f *ast.File) {
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			r.names[receiver(d)+d.Name.Name] = true
		case *ast.GenDecl:
			for _, s := range d.Specs {
				switch s := s.(type) {
				case *ast.ValueSpec:
					for _, n := range s.Names {
						r.names[n.Name] = true
					}
				case *ast.TypeSpec:
					r.names[s.Name.Name] = true
					r.members(s)
				}
			}
		}
	}
}

// members notes fields and methods of a type, and what it embeds: then any name may be its.
func (r *room) members(s *ast.TypeSpec) {
	var list *ast.FieldList
	switch u := s.Type.(type) {
	case *ast.StructType:
		list = u.Fields
	case *ast.InterfaceType:
		list = u.Methods
	default:
		return
	}
	for _, f := range list.List {
		if len(f.Names) == 0 {
			r.embed(s.Name.Name, f.Type)
		}
		for _, n := range f.Names {
			r.names[s.Name.Name+"."+n.Name] = true
		}
	}
}

// embed notes that a type embeds another one, of this package or of another.
func (r *room) embed(name string, of ast.Expr) {
	if p, ok := of.(*ast.StarExpr); ok {
		of = p.X
	}
	if local, ok := of.(*ast.Ident); ok {
		r.embeds[name] = append(r.embeds[name], local.Name)
		r.names[name+"."+local.Name] = true
	} else {
		r.names[name+".*"] = true
	}
}

// has reports whether there is a name, or a member of a type or of what that embeds.
func (r *room) has(name string) bool {
	of, member, dotted := strings.Cut(name, ".")
	return r.names[name] || dotted && (r.names[of+".*"] ||
		slices.ContainsFunc(r.embeds[of], func(e string) bool { return r.has(e + "." + member) }))
}

// receiver is the type of a method, with a dot, or nothing.
func receiver(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return ""
	}
	of := d.Recv.List[0].Type
	for {
		switch u := of.(type) {
		case *ast.StarExpr:
			of = u.X
		case *ast.IndexExpr:
			of = u.X
		case *ast.Ident:
			return u.Name + "."
		default:
			return ""
		}
	}
}

var aLink = regexp.MustCompile(`\[\*?([A-Za-z]\w*)((?:\.[A-Z]\w*)*)\]`)

// follow looks the links of a comment up and returns how many there were. Indented lines are code.
func (r *room) follow(t *testing.T, set *token.FileSet, c *ast.CommentGroup,
	imports map[string]*room) (links int) {
	for _, b := range new(comment.Parser).Parse(c.Text()).Content {
		if _, code := b.(*comment.Code); code {
			continue
		}
		text := new(comment.Printer).Text(&comment.Doc{Content: []comment.Block{b}})
		for _, m := range aLink.FindAllStringSubmatch(string(text), -1) {
			in, name := r, m[1]+m[2]
			if first, rest, dotted := strings.Cut(name, "."); dotted && imports[first] != nil {
				in, name = imports[first], rest
			} else if !ast.IsExported(name) {
				continue // of a package of others, or no link
			}
			links++
			if !in.has(name) {
				t.Errorf("%s: there is no %s in %s", set.Position(c.Pos()), m[0], in.dir)
			}
		}
	}
	return links
}

// begins checks the first word of the comment of what is exported.
func begins(t *testing.T, set *token.FileSet, d ast.Decl) {
	check := func(c *ast.CommentGroup, name string) {
		if c == nil || !ast.IsExported(name) || strings.HasPrefix(c.Text(), name+" ") ||
			strings.HasPrefix(c.Text(), name+":") || strings.HasPrefix(c.Text(), name+"\n") {
			return
		}
		t.Errorf("%s: the comment of %s begins with other words: %s", set.Position(c.Pos()), name,
			doc.Synopsis(c.Text()))
	}
	switch d := d.(type) {
	case *ast.FuncDecl:
		check(d.Doc, d.Name.Name)
	case *ast.GenDecl:
		if len(d.Specs) == 1 {
			if s, ok := d.Specs[0].(*ast.TypeSpec); ok {
				check(d.Doc, s.Name.Name)
			}
		}
	}
}
