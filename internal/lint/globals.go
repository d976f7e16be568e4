package lint

import (
	"go/ast"
	"go/token"
	"slices"
	"strings"
)

// Globals finds package-level variables other than sentinel errors, compile-time
// assertions, embedded files and constant tables: literals that nothing writes.
func Globals(t *Tree) []Finding {
	byDir := make(map[string][]*File)
	for _, f := range t.shipped() {
		byDir[f.Dir()] = append(byDir[f.Dir()], f)
	}
	var out []Finding
	for _, files := range byDir {
		tables := make(map[string]bool) // names that are fine unless written
		for _, f := range files {
			for _, d := range f.AST.Decls {
				if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.VAR {
					out = append(out, checkVars(f, g, tables)...)
				}
			}
		}
		for _, f := range files {
			out = append(out, writes(f, tables)...)
		}
	}
	slices.SortFunc(out, func(a, b Finding) int { return strings.Compare(a.String(), b.String()) })
	return out
}

// checkVars judges one var declaration and notes the names of tables.
func checkVars(f *File, g *ast.GenDecl, tables map[string]bool) []Finding {
	var out []Finding
	for _, s := range g.Specs {
		spec := s.(*ast.ValueSpec)
		embedded := isEmbed(g.Doc) || isEmbed(spec.Doc)
		for i, name := range spec.Names {
			if name.Name == "_" || embedded {
				continue
			}
			if len(spec.Values) != len(spec.Names) {
				out = append(out, f.at(name.Pos(), "package variable %s has no constant value: it is state of the whole process", name.Name))
				continue
			}
			if !f.sentinel(spec.Values[i]) && !f.constant(spec.Values[i]) {
				out = append(out, f.at(name.Pos(), "package variable %s is neither a sentinel error nor a constant table", name.Name))
				continue
			}
			tables[name.Name] = true
		}
	}
	return out
}

func isEmbed(doc *ast.CommentGroup) bool {
	return doc != nil && slices.ContainsFunc(doc.List, func(c *ast.Comment) bool { return strings.HasPrefix(c.Text, "//go:embed ") })
}

// sentinel accepts errors.New and fmt.Errorf.
func (f *File) sentinel(e ast.Expr) bool {
	call, ok := e.(*ast.CallExpr)
	if !ok {
		return false
	}
	p, name, ok := f.ref(call.Fun)
	return ok && (p == "errors" && name == "New" || p == "fmt" && name == "Errorf")
}

// constant accepts what the compiler can lay out or what makes a value without
// effects: literals, names, conversions, functions as values.
func (f *File) constant(e ast.Expr) bool {
	switch e := e.(type) {
	case nil, *ast.BasicLit, *ast.Ident, *ast.FuncLit:
		return true
	case *ast.SelectorExpr:
		return f.constant(e.X)
	case *ast.ParenExpr:
		return f.constant(e.X)
	case *ast.UnaryExpr:
		return e.Op != token.ARROW && f.constant(e.X)
	case *ast.BinaryExpr:
		return f.constant(e.X) && f.constant(e.Y)
	case *ast.KeyValueExpr:
		return f.constant(e.Key) && f.constant(e.Value)
	case *ast.CompositeLit:
		if p, name, ok := f.ref(e.Type); ok && p == "sync" {
			return name == "" // a lock or pool is state
		}
		return !slices.ContainsFunc(e.Elts, func(x ast.Expr) bool { return !f.constant(x) })
	case *ast.CallExpr:
		if lit, ok := e.Fun.(*ast.FuncLit); ok && len(e.Args) == 0 {
			return f.computes(lit)
		}
		if p, name, ok := f.ref(e.Fun); ok && slices.Contains(pureCalls, p+"."+name) {
			return !slices.ContainsFunc(e.Args, func(x ast.Expr) bool { return !f.constant(x) })
		}
		return isConversion(e) && f.constant(e.Args[0])
	}
	return false
}

// pureCalls give a value that depends on their arguments alone and that has no
// state which shows.
var pureCalls = []string{"strings.Fields", "regexp.MustCompile"}

// computes accepts a function that only fills a table: it calls nothing but
// conversions and builtins.
func (f *File) computes(lit *ast.FuncLit) bool {
	pure := true
	ast.Inspect(lit.Body, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			id, isID := call.Fun.(*ast.Ident)
			builtin := isID && slices.Contains([]string{"make", "append", "min", "max"}, id.Name)
			pure = pure && (builtin || isConversion(call))
		}
		return pure
	})
	return pure
}

// basicTypes and len are the calls a table may have.
var basicTypes = []string{
	"string", "byte", "rune", "bool", "int", "int8", "int16", "int32", "int64", "uint", "uint8", "uint16", "uint32", "uint64",
	"float32", "float64", "len",
}

func isConversion(call *ast.CallExpr) bool {
	if len(call.Args) != 1 {
		return false
	}
	switch fun := call.Fun.(type) {
	case *ast.ArrayType:
		return true
	case *ast.Ident:
		return slices.Contains(basicTypes, fun.Name)
	}
	return false
}

// writes finds what changes a table: assignment to it or into it, its address,
// delete, clear and copy.
func writes(f *File, tables map[string]bool) []Finding {
	var out []Finding
	hit := func(e ast.Expr, what string) {
		if id := f.packageVar(e, tables); id != nil {
			out = append(out, f.at(e.Pos(), "%s package variable %s: it is then state of the whole process", what, id.Name))
		}
	}
	ast.Inspect(f.AST, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			if n.Tok != token.DEFINE {
				for _, l := range n.Lhs {
					hit(l, "assignment to")
				}
			}
		case *ast.IncDecStmt:
			hit(n.X, "assignment to")
		case *ast.RangeStmt:
			if n.Tok == token.ASSIGN {
				hit(n.Key, "assignment to")
				hit(n.Value, "assignment to")
			}
		case *ast.UnaryExpr:
			if n.Op == token.AND {
				if _, whole := n.X.(*ast.Ident); whole {
					hit(n.X, "address of")
				}
			}
		case *ast.CallExpr:
			if id, ok := n.Fun.(*ast.Ident); ok && len(n.Args) > 0 && slices.Contains([]string{"delete", "clear", "copy"}, id.Name) {
				hit(n.Args[0], id.Name+" on")
			}
		}
		return true
	})
	return out
}

// packageVar finds the package-level variable at the root of an expression like
// name, name[i].f or *name.
func (f *File) packageVar(e ast.Expr, names map[string]bool) *ast.Ident {
	for {
		switch x := e.(type) {
		case *ast.IndexExpr:
			e = x.X
		case *ast.SliceExpr:
			e = x.X
		case *ast.SelectorExpr:
			e = x.X
		case *ast.StarExpr:
			e = x.X
		case *ast.ParenExpr:
			e = x.X
		case *ast.Ident:
			if !names[x.Name] {
				return nil
			}
			// The parser resolves names within a file: to a local declaration, or to
			// one at package level. What it leaves open stands in another file.
			if x.Obj == nil || f.AST.Scope != nil && f.AST.Scope.Lookup(x.Name) == x.Obj {
				return x
			}
			return nil
		default:
			return nil
		}
	}
}
