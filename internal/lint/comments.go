package lint

import (
	"go/ast"
	"go/token"
	"path"
	"slices"
	"strings"
)

// Comments finds exported names without a doc comment that begins with them, and
// packages without a package comment. That of a public package stands in doc.go.
func Comments(t *Tree) []Finding {
	var out []Finding
	packages := make(map[string][]*File)
	for _, f := range t.shipped() {
		packages[f.Dir()] = append(packages[f.Dir()], f)
		if f.Main() {
			continue
		}
		for _, d := range f.AST.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Name.IsExported() && exportedReceiver(d) {
					out = append(out, f.doc(d.Name, d.Doc)...)
				}
			case *ast.GenDecl:
				out = append(out, f.genDoc(d)...)
			}
		}
	}
	for dir, files := range packages {
		out = append(out, packageDoc(dir, files)...)
	}
	slices.SortFunc(out, func(a, b Finding) int { return strings.Compare(a.String(), b.String()) })
	return out
}

func exportedReceiver(d *ast.FuncDecl) bool {
	if d.Recv == nil || len(d.Recv.List) == 0 {
		return true
	}
	e := d.Recv.List[0].Type
	for {
		switch x := e.(type) {
		case *ast.StarExpr:
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.IndexListExpr:
			e = x.X
		case *ast.Ident:
			return x.IsExported()
		default:
			return true
		}
	}
}

// genDoc judges types, constants and variables. In a group a comment on the
// group, above the name or behind it serves; a comment that stands above one
// type begins with its name.
func (f *File) genDoc(d *ast.GenDecl) []Finding {
	var out []Finding
	for _, s := range d.Specs {
		switch s := s.(type) {
		case *ast.TypeSpec:
			if !s.Name.IsExported() {
				continue
			}
			doc := s.Doc
			if doc == nil && !d.Lparen.IsValid() {
				doc = d.Doc
			}
			out = append(out, f.doc(s.Name, doc)...)
			if it, ok := s.Type.(*ast.InterfaceType); ok {
				out = append(out, f.methodDocs(s.Name.Name, it)...)
			}
		case *ast.ValueSpec:
			for _, name := range s.Names {
				if !name.IsExported() {
					continue
				}
				switch {
				case s.Doc != nil && len(s.Names) == 1 && !d.Lparen.IsValid(), d.Doc != nil && !d.Lparen.IsValid():
					out = append(out, f.doc(name, firstDoc(s.Doc, d.Doc))...)
				case s.Doc == nil && s.Comment == nil && d.Doc == nil:
					out = append(out, f.at(name.Pos(), "%s has no doc comment", name.Name))
				}
			}
		}
	}
	return out
}

func firstDoc(docs ...*ast.CommentGroup) *ast.CommentGroup {
	for _, d := range docs {
		if d != nil {
			return d
		}
	}
	return nil
}

// methodDocs judges the methods of an interface. The only one may leave its
// promises to the comment on the interface.
func (f *File) methodDocs(typ string, it *ast.InterfaceType) []Finding {
	if len(it.Methods.List) == 1 {
		return nil
	}
	var out []Finding
	for _, m := range it.Methods.List {
		for _, name := range m.Names {
			if name.IsExported() && m.Doc == nil && m.Comment == nil {
				out = append(out, f.at(name.Pos(), "%s.%s has no doc comment", typ, name.Name))
			}
		}
	}
	return out
}

// doc judges the comment of one name.
func (f *File) doc(name *ast.Ident, doc *ast.CommentGroup) []Finding {
	if doc == nil || strings.TrimSpace(doc.Text()) == "" {
		return []Finding{f.at(name.Pos(), "%s has no doc comment", name.Name)}
	}
	text := doc.Text()
	for _, article := range []string{"", "A ", "An ", "The "} {
		rest, ok := strings.CutPrefix(text, article+name.Name)
		if ok && (rest == "" || !token.IsIdentifier(rest[:1])) {
			return nil
		}
	}
	if strings.HasPrefix(text, "Deprecated:") {
		return nil
	}
	return []Finding{f.at(name.Pos(), "the doc comment of %s begins with %q", name.Name, firstWords(text))}
}

func firstWords(s string) string {
	words := strings.Fields(s)
	return strings.Join(words[:min(len(words), 3)], " ")
}

// packageDoc judges the package comment.
func packageDoc(dir string, files []*File) []Finding {
	var with []*File
	for _, f := range files {
		if f.AST.Doc != nil && strings.TrimSpace(f.AST.Doc.Text()) != "" {
			with = append(with, f)
		}
	}
	switch {
	case len(with) == 0:
		return []Finding{{File: dir, Text: "package has no package comment"}}
	case len(with) > 1:
		return []Finding{{File: with[1].Path, Text: "package has a second package comment, the first is in " + with[0].Path}}
	}
	f, text := with[0], with[0].AST.Doc.Text()
	var out []Finding
	if want := "Package " + f.AST.Name.Name + " "; !f.Main() && !strings.HasPrefix(text, want) {
		out = append(out, f.at(f.AST.Package, "package comment begins with %q, want %q", firstWords(text), want))
	}
	if !f.Main() && !isInternal(dir) && path.Base(f.Path) != "doc.go" {
		out = append(out, f.at(f.AST.Package, "package comment stands here, want it in doc.go"))
	}
	return out
}

func isInternal(dir string) bool { return slices.Contains(strings.Split(dir, "/"), "internal") }
