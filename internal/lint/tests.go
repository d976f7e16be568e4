package lint

import (
	"go/ast"
	"path"
	"slices"
	"strings"
)

// Tests finds packages whose tests lack what every package of that kind has:
// seeds in each fuzz target, goleak where goroutines are started, an example
// with checked output in each public package.
func Tests(t *Tree) []Finding {
	var out []Finding
	shipped := make(map[string][]*File)
	tests := make(map[string][]*File)
	for _, f := range t.Files {
		switch {
		case f.Test:
			tests[f.Dir()] = append(tests[f.Dir()], f)
			out = append(out, seedless(f)...)
		case !f.Generated && !f.Main():
			shipped[f.Dir()] = append(shipped[f.Dir()], f)
		}
	}
	for dir, files := range shipped {
		if at := goroutine(files); at != nil && !slices.ContainsFunc(tests[dir], usesGoleak) {
			at.Text = "package starts goroutines, and its tests do not look for leaks with goleak"
			out = append(out, *at)
		}
		public := !isInternal(dir) && !strings.HasSuffix(path.Base(dir), "test") && exportsFunc(files)
		if public && !slices.ContainsFunc(tests[dir], hasExample) {
			out = append(out, Finding{dir, 0, "package has no example with output"})
		}
	}
	slices.SortFunc(out, func(a, b Finding) int { return strings.Compare(a.String(), b.String()) })
	return out
}

// seedless finds fuzz targets without seeds: neither f.Add nor a helper that is
// handed f.
func seedless(f *File) []Finding {
	var out []Finding
	for _, d := range f.AST.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Recv != nil || !strings.HasPrefix(fn.Name.Name, "Fuzz") || len(fn.Type.Params.List) != 1 || len(fn.Type.Params.List[0].Names) != 1 {
			continue
		}
		param, seeds := fn.Type.Params.List[0].Names[0].Name, false
		ast.Inspect(fn.Body, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			if sel, ok := call.Fun.(*ast.SelectorExpr); ok && sel.Sel.Name == "Add" && isName(sel.X, param) {
				seeds = true
			}
			seeds = seeds || slices.ContainsFunc(call.Args, func(e ast.Expr) bool { return isName(e, param) })
			return true
		})
		if !seeds {
			out = append(out, f.at(fn.Pos(), "%s has no seeds", fn.Name.Name))
		}
	}
	return out
}

func isName(e ast.Expr, name string) bool {
	id, ok := e.(*ast.Ident)
	return ok && id.Name == name
}

// goroutine finds the first place where one is started: go, or wg.Go with a
// function.
func goroutine(files []*File) *Finding {
	var found *Finding
	for _, f := range files {
		ast.Inspect(f.AST, func(n ast.Node) bool {
			starts := false
			switch n := n.(type) {
			case *ast.GoStmt:
				starts = true
			case *ast.CallExpr:
				sel, ok := n.Fun.(*ast.SelectorExpr)
				starts = ok && sel.Sel.Name == "Go" && len(n.Args) == 1
			}
			if starts && found == nil {
				at := f.at(n.Pos(), "")
				found = &at
			}
			return found == nil
		})
	}
	return found
}

func usesGoleak(f *File) bool {
	for _, target := range f.imports {
		if target == goleak {
			return true
		}
	}
	return false
}

// exportsFunc says whether there is anything an example could call.
func exportsFunc(files []*File) bool {
	for _, f := range files {
		for _, d := range f.AST.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Name.IsExported() && exportedReceiver(fn) {
				return true
			}
		}
	}
	return false
}

// hasExample looks for an Example function whose output is checked.
func hasExample(f *File) bool {
	for _, d := range f.AST.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Recv != nil || !strings.HasPrefix(fn.Name.Name, "Example") {
			continue
		}
		for _, c := range f.AST.Comments {
			text := strings.ToLower(c.Text())
			if c.Pos() > fn.Body.Lbrace && c.End() < fn.Body.Rbrace &&
				(strings.HasPrefix(text, "output:") || strings.HasPrefix(text, "unordered output:")) {
				return true
			}
		}
	}
	return false
}
