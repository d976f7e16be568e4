package lint

import (
	"bytes"
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// A Finding is one broken rule at one place.
type Finding struct {
	File string // slash-separated, from the tree's root
	Line int    // 0 when it is about the whole file
	Text string
}

// String is the finding as compilers write theirs.
func (f Finding) String() string {
	if f.Line == 0 {
		return f.File + ": " + f.Text
	}
	return fmt.Sprintf("%s:%d: %s", f.File, f.Line, f.Text)
}

// A Tree is a source tree, parsed.
type Tree struct {
	Files []*File           // Go files, by path
	Texts map[string][]byte // other text files by path: Markdown, Makefile, scripts, go.mod
	fset  *token.FileSet
}

// A File is one Go file.
type File struct {
	Path      string
	Lines     int
	AST       *ast.File
	Test      bool
	Generated bool
	imports   map[string]string // local name to import path
	tree      *Tree
}

// Dir is the folder of the file, "." for the root.
func (f *File) Dir() string { return path.Dir(f.Path) }

// Main says whether the file belongs to a program.
func (f *File) Main() bool { return f.AST.Name.Name == "main" }

// at makes a finding.
func (f *File) at(pos token.Pos, format string, args ...any) Finding {
	return Finding{File: f.Path, Line: f.tree.fset.Position(pos).Line, Text: fmt.Sprintf(format, args...)}
}

// ref resolves pkg.Name to the import path and the name; ok is false for
// anything else, a local variable's field for one.
func (f *File) ref(e ast.Expr) (importPath, name string, ok bool) {
	sel, isSel := e.(*ast.SelectorExpr)
	if !isSel {
		return "", "", false
	}
	id, isID := sel.X.(*ast.Ident)
	if !isID || id.Obj != nil {
		return "", "", false
	}
	p, found := f.imports[id.Name]
	return p, sel.Sel.Name, found
}

// skipDirs are folders that are not ours to judge.
var skipDirs = []string{".git", ".cache", "bin", "testdata", "node_modules"}

// Load parses the tree under root.
func Load(root string) (*Tree, error) {
	sources := make(map[string][]byte)
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if p != root && slices.Contains(skipDirs, d.Name()) {
				return filepath.SkipDir
			}
			return nil
		}
		if !d.Type().IsRegular() || !isText(d.Name()) {
			return nil
		}
		data, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		sources[filepath.ToSlash(rel)] = data
		return nil
	})
	if err != nil {
		return nil, err
	}
	return Parse(sources)
}

// isText says whether a rule may look at the file.
func isText(name string) bool {
	switch path.Ext(name) {
	case ".go", ".md", ".mod", ".sh", ".py", ".txt", ".html", ".css", ".js", ".yml", ".yaml", ".proto":
		return true
	}
	return name == "Makefile" || name == "run" || name == ".gitignore"
}

// Parse makes a tree of files by path.
func Parse(sources map[string][]byte) (*Tree, error) {
	t := &Tree{Texts: make(map[string][]byte), fset: token.NewFileSet()}
	for p, data := range sources {
		if path.Ext(p) != ".go" {
			t.Texts[p] = data
			continue
		}
		parsed, err := parser.ParseFile(t.fset, p, data, parser.ParseComments)
		if err != nil {
			return nil, fmt.Errorf("lint: %w", err)
		}
		f := &File{
			Path: p, AST: parsed, Test: strings.HasSuffix(p, "_test.go"), Generated: ast.IsGenerated(parsed),
			Lines: bytes.Count(data, []byte("\n")), imports: make(map[string]string), tree: t,
		}
		for _, imp := range parsed.Imports {
			target, err := strconv.Unquote(imp.Path.Value)
			if err != nil {
				return nil, fmt.Errorf("lint: %s: %w", p, err)
			}
			f.imports[localName(imp, target)] = target
		}
		t.Files = append(t.Files, f)
	}
	slices.SortFunc(t.Files, func(a, b *File) int { return cmp.Compare(a.Path, b.Path) })
	return t, nil
}

// localName guesses the name under which a file knows an import: the last
// element without a version.
func localName(imp *ast.ImportSpec, target string) string {
	if imp.Name != nil {
		return imp.Name.Name
	}
	base := path.Base(target)
	if len(base) > 1 && base[0] == 'v' && strings.Trim(base[1:], "0123456789") == "" {
		base = path.Base(path.Dir(target))
	}
	return base
}

// shipped lists the files that users compile: neither tests nor generated.
func (t *Tree) shipped() []*File {
	var out []*File
	for _, f := range t.Files {
		if !f.Test && !f.Generated {
			out = append(out, f)
		}
	}
	return out
}
