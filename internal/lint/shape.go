package lint

import (
	"bytes"
	"go/ast"
	"go/token"
	"path"
	"slices"
	"strings"
)

// MaxLines is the greatest length of a Go file.
const MaxLines = 600

// Lengths finds Go files that are too long to be about one thing.
func Lengths(t *Tree) []Finding {
	var out []Finding
	for _, f := range t.Files {
		if f.Lines > MaxLines && !f.Generated {
			out = append(out, f.at(f.AST.Package, "%d lines, at most %d", f.Lines, MaxLines))
		}
	}
	return out
}

// Skips finds tests that may leave themselves out: a test that cannot run must
// fail.
func Skips(t *Tree) []Finding {
	var out []Finding
	for _, f := range t.Files {
		ast.Inspect(f.AST, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if p, name, ok := f.ref(sel); ok && p == "testing" && name == "Short" {
				out = append(out, f.at(sel.Pos(), "testing.Short leaves tests out"))
			}
			id, ok := sel.X.(*ast.Ident)
			if ok && slices.Contains([]string{"t", "tb", "b", "f", "rt"}, id.Name) &&
				slices.Contains([]string{"Skip", "Skipf", "SkipNow"}, sel.Sel.Name) && f.testing() {
				out = append(out, f.at(sel.Pos(), "%s.%s leaves a test out", id.Name, sel.Sel.Name))
			}
			return true
		})
	}
	return out
}

// testing says whether the file is part of tests.
func (f *File) testing() bool {
	for _, target := range f.imports {
		if target == "testing" {
			return true
		}
	}
	return f.Test
}

// machinePaths begin with folders that exist on somebody's machine only. They
// are put together here, so that this file does not name them.
func machinePaths() []string {
	var out []string
	for _, dir := range []string{"work", "root", "home"} {
		out = append(out, "/"+dir+"/")
	}
	return out
}

// Paths finds names of folders on one machine.
func Paths(t *Tree) []Finding {
	var out []Finding
	check := func(p string, first int, data []byte) {
		for i, line := range bytes.Split(data, []byte("\n")) {
			for _, bad := range machinePaths() {
				if at := bytes.Index(line, []byte(bad)); at >= 0 && startsPath(line, at) {
					out = append(out, Finding{File: p, Line: first + i, Text: "names a path of one machine: " + bad})
				}
			}
		}
	}
	for p, data := range t.Texts {
		check(p, 1, data)
	}
	for _, f := range t.Files {
		line := func(pos token.Pos) int { return t.fset.Position(pos).Line }
		for _, group := range f.AST.Comments {
			for _, c := range group.List {
				check(f.Path, line(c.Pos()), []byte(c.Text))
			}
		}
		ast.Inspect(f.AST, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok {
				check(f.Path, line(lit.Pos()), []byte(lit.Value))
			}
			return true
		})
	}
	return out
}

// startsPath says whether a path begins at the index, rather than goes on there
// as in a URL or a relative path.
func startsPath(line []byte, at int) bool {
	return at == 0 || strings.ContainsRune(" \t\"'`(=:<", rune(line[at-1]))
}

// goLine is the language version of every module.
const goLine = "go 1.26.0"

// Modules compares modules.txt with the go.mod files that exist. A line is a
// folder and whether the module is released, yes or no, and the word real when it
// needs installed parts and so is not for make test. A module's path is that
// of the root with its folder; its go line is the same everywhere; a released
// one replaces nothing.
func Modules(t *Tree) []Finding {
	const list = "modules.txt"
	listed := make(map[string]bool)
	var out []Finding
	for i, line := range strings.Split(string(t.Texts[list]), "\n") {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		words := strings.Fields(line)
		known := len(words) == 2 || len(words) == 3 && words[2] == "real"
		if !known || words[1] != "yes" && words[1] != "no" {
			out = append(out, Finding{list, i + 1, "want a folder, yes or no, and real or nothing"})
			continue
		}
		listed[words[0]] = true
		mod := path.Join(words[0], "go.mod")
		data, ok := t.Texts[mod]
		if !ok {
			out = append(out, Finding{list, i + 1, words[0] + " has no go.mod"})
			continue
		}
		lines := strings.Split(string(data), "\n")
		for _, want := range []string{"module " + path.Join(Module, words[0]), goLine} {
			if !slices.Contains(lines, want) {
				out = append(out, Finding{mod, 0, "has no line " + want})
			}
		}
		replaces := func(l string) bool { return strings.HasPrefix(l, "replace ") }
		if words[1] == "yes" && slices.ContainsFunc(lines, replaces) {
			out = append(out, Finding{mod, 0, "a released module must not replace another"})
		}
	}
	for p := range t.Texts {
		if path.Base(p) == "go.mod" && !listed[path.Dir(p)] {
			out = append(out, Finding{p, 0, "module is not in " + list})
		}
	}
	return out
}
