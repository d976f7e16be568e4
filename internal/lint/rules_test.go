package lint

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// Each rule must find each of its faults, at its line, and nothing in what is
// right. A line that ends in "// want TEXT" must have a finding that has TEXT.
func TestRulesBite(t *testing.T) {
	for _, c := range []struct {
		name  string
		rule  func(*Tree) []Finding
		files map[string]string
	}{
		{"effects", Effects, map[string]string{
			"a/a.go": `package a // want for its effects

import (
	"fmt"
	"log"
	"net/http"
	"net/http/httputil"
	sys "os"

	_ "net/http/pprof"
)

func init() { // want func init
	fmt.Println(1) // want standard output
	_ = sys.Getenv("X") // want environment
	f := sys.LookupEnv // want environment
	_, _ = f("X")
	http.Get("x") // want proxy
	_ = http.DefaultClient // want proxy
	_ = &http.Client{Timeout: 1} // want without Transport
	_ = new(http.Client) // want without Transport
	_ = httputil.ReverseProxy{} // want without Transport
	_ = &http.Client{Transport: &http.Transport{}}
	_ = http.NewRequest
	log.Printf("x") // want whole process
	var os struct{ Getenv func() }
	os.Getenv()
}
`,
			"a/a_test.go": "package a\n\nimport \"os\"\n\nvar _ = os.Getenv(\"X\")\n\nfunc init() {}\n",
			"b/main.go":   "package main\n\nimport (\n\t_ \"embed\"\n\t\"fmt\"\n\t\"os\"\n)\n\nfunc main() {\n\tfmt.Println(os.Args)\n\tos.Exit(1)\n\tos.Environ() // want environment\n}\n",
		}},
		{"globals", Globals, map[string]string{
			"a/a.go": `package a

import (
	"embed"
	"errors"
	"sync"
)

var ErrX = errors.New("x")

var _ = sideEffect()

//go:embed x
var fs embed.FS

var table = [...]string{"a", 2: "b"}

var nested = map[string][]T{"a": {{1, f}}, "b": {}}

var computed = func() (k [4]int) { k[len(table)-3] = 1; return k }()

var counter int // want no constant value

var pool = sync.Pool{} // want neither

var made = newT() // want neither

var lazy = func() int { return sideEffect() }() // want neither

var written = []int{1}

var taken = T{}

func change() {
	written[0]++ // want assignment to
	_ = &taken // want address of
	table := table
	table[0] = "local"
	for i := range nested {
		_ = i
	}
	delete(nested, "a") // want delete on
}
`,
			"a/b.go": "package a\n\nfunc other() {\n\tclear(written) // want clear on\n\ttable[1] = \"x\" // want assignment to\n}\n",
		}},
		{"comments", Comments, map[string]string{
			"a/doc.go": "// Package a is one.\npackage a\n",
			"a/a.go": `package a

// T is right.
type T struct{ X int }

// A U is right.
type U int

// Wrong start.
type V int // want begins with "Wrong start."

type W int // want no doc comment

// F is right.
func F() {}

func G() {} // want no doc comment

func (T) M() {} // want no doc comment

func (hidden) M() {}

type hidden int

// Constants.
const (
	A = 1
	B = 2
)

const (
	C = 1 // with a comment
	D = 2 // too
)

// Many has many.
type Many interface {
	// One is documented.
	One()
	Two() // does, as said here
}

// Single has one.
type Single interface{ Only() }
`,
			"b/b.go":          "package b // want no package comment\n",
			"c/c.go":          "// Package c is one.\npackage c // want want it in doc.go\n",
			"internal/d/d.go": "// Package d is one.\npackage d\n",
			"e/doc.go":        "// This is e.\npackage e // want want \"Package e \"\n",
			"f/main.go":       "// Command f does.\npackage main\n",
		}},
		{"lengths", Lengths, map[string]string{
			"a/a.go": "package a // want 601 lines\n" + strings.Repeat("\n", 600),
			"a/b.go": "package a\n" + strings.Repeat("\n", 599),
		}},
		{"skips", Skips, map[string]string{
			"a/a_test.go": "package a\n\nimport \"testing\"\n\nfunc TestX(t *testing.T) {\n\tt.Skip() // want leaves a test out\n\tif testing.Short() { // want leaves tests out\n\t}\n\tr.Skip()\n}\n",
			"a/a.go":      "package a\n\nfunc f(t scanner) { t.Skip() }\n",
		}},
		{"paths", Paths, map[string]string{
			"a/a.go":    "package a\n\nconst p = \"/wo" + "rk/x\" // want one machine\n\nconst q = \"https://host/wo" + "rk/x\"\n",
			"README.md": "ok\n",
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			sources := make(map[string][]byte)
			for p, text := range c.files {
				sources[p] = []byte(text)
			}
			tree, err := Parse(sources)
			if err != nil {
				t.Fatal(err)
			}
			got := make(map[string][]string)
			for _, f := range c.rule(tree) {
				at := fmt.Sprintf("%s:%d", f.File, f.Line)
				if f.Line == 0 { // about a package: counts for the first line of its first file
					at = slices.Sorted(maps.Keys(filesIn(c.files, f.File)))[0] + ":1"
				}
				got[at] = append(got[at], f.Text)
			}
			for p, text := range c.files {
				for i, line := range strings.Split(text, "\n") {
					at := fmt.Sprintf("%s:%d", p, i+1)
					_, want, wants := strings.Cut(line, "// want ")
					found := slices.ContainsFunc(got[at], func(s string) bool { return strings.Contains(s, want) })
					if wants != found && (wants || len(got[at]) > 0) {
						t.Errorf("%s: found %q, want %q", at, got[at], want)
					}
					delete(got, at)
				}
			}
			for at, text := range got {
				t.Errorf("%s: %q is at no line", at, text)
			}
		})
	}
}

func filesIn(files map[string]string, dir string) map[string]string {
	out := make(map[string]string)
	for p, text := range files {
		if strings.HasPrefix(p, dir+"/") {
			out[p] = text
		}
	}
	return out
}

// texts runs a rule on files and joins what it says.
func texts(t *testing.T, rule func(*Tree) []Finding, files map[string]string) string {
	t.Helper()
	sources := make(map[string][]byte)
	for p, text := range files {
		sources[p] = []byte(text)
	}
	tree, err := Parse(sources)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, f := range rule(tree) {
		out = append(out, f.String())
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}

func TestReadmeRule(t *testing.T) {
	files := map[string]string{
		"README.md": strings.Join([]string{
			"[a](a/x.md) [b](missing.md#part) [c](https://host/x) [d](#here)",
			"```sh",
			"make test lint FUZZTIME=10s",
			"make nothing",
			"$ go run ./prog -x ./none",
			"go run ./lib",
			"go test ./lib/... ./gone/...",
			"A=b go run ./gone2 # comment",
			"scripts/none.sh",
			"curl http://127.0.0.1/",
			"```",
			"```go",
			"make nothing",
			"```",
			"make nothing either",
		}, "\n"),
		"a/x.md":      "[up](../README.md) [lost](y.md)",
		"Makefile":    ".PHONY: test nothing\ntest lint: x\n\tmake nothing: x\n",
		"prog/p.go":   "package main\n",
		"lib/in/l.go": "package in\n",
		"lib/l.go":    "package lib\n",
	}
	want := strings.Join([]string{
		"README.md:1: link to missing.md, which does not exist",
		"README.md:4: make nothing: the Makefile has no such target",
		"README.md:6: go run ./lib: no such package",
		"README.md:7: go test ./gone/...: no such package",
		"README.md:8: go run ./gone2: no such package",
		"README.md:9: scripts/none.sh does not exist",
		"a/x.md:1: link to a/y.md, which does not exist",
	}, "\n")
	if got := texts(t, Readme, files); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got := texts(t, Readme, map[string]string{"a.md": "x"}); got != "README.md: is missing" {
		t.Errorf("got %s", got)
	}
}

// A comment behind a name documents it, so these lines cannot carry marks.
func TestBareNames(t *testing.T) {
	got := texts(t, Comments, map[string]string{
		"a/doc.go": "// Package a is one.\npackage a\n",
		"a/a.go":   "package a\n\nconst E = 1\n\nvar (\n\tX = 1\n)\n\n// T is.\ntype T interface {\n\tOne()\n\tTwo() // two\n}\n",
	})
	want := "a/a.go:11: T.One has no doc comment\na/a.go:3: E has no doc comment\na/a.go:6: X has no doc comment"
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestTestsRule(t *testing.T) {
	const example = "\nfunc ExampleF() {\n\tF()\n\t// Output:\n}\n"
	got := texts(t, Tests, map[string]string{
		"a/a.go":               "package a\n\nfunc F() { go F() }\n",
		"a/a_test.go":          "package a\n\nfunc FuzzX(f *testing.F) { f.Fuzz(nil) }\n\nfunc FuzzY(f *testing.F) { seeds(f) }\n\nfunc FuzzZ(f *testing.F) { f.Add(1) }\n",
		"b/b.go":               "package b\n\nfunc F() { wg.Go(F) }\n",
		"b/b_test.go":          "package b\n\nimport \"go.uber.org/goleak\"\n" + example,
		"c/c.go":               "package c\n\nfunc F() {}\n",
		"c/c_test.go":          "package c\n" + strings.ReplaceAll(example, "Output", "Result"),
		"d/d.go":               "package d\n\ntype T int\n",
		"d/dtest/d.go":         "package dtest\n\nfunc F() {}\n",
		"e/internal/x/x.go":    "package x\n\nfunc F() {}\n",
		"f/main.go":            "package main\n\nfunc main() { go main() }\n",
		"g/generated_by_go.go": "// Code generated by hand. DO NOT EDIT.\n\npackage g\n\nfunc F() { go F() }\n",
	})
	want := strings.Join([]string{
		"a/a.go:3: package starts goroutines, and its tests do not look for leaks with goleak",
		"a/a_test.go:3: FuzzX has no seeds",
		"a: package has no example with output",
		"c: package has no example with output",
	}, "\n")
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestModulesRule(t *testing.T) {
	files := map[string]string{
		"modules.txt": "# comment\n. yes\na no\nb maybe\nd yes\ne no real\n",
		"go.mod":      "module " + Module + "\n\ngo 1.26.0\n",
		"c/go.mod":    "module y\n",
		"d/go.mod":    "module x\n\ngo 1.26.1\n\nreplace a => ../a\n",
		"e/go.mod":    "module " + Module + "/e\n\ngo 1.26.0\n\nreplace a => ../a\n",
	}
	want := strings.Join([]string{
		"c/go.mod: module is not in modules.txt",
		"d/go.mod: a released module must not replace another",
		"d/go.mod: has no line go 1.26.0",
		"d/go.mod: has no line module " + Module + "/d",
		"modules.txt:3: a has no go.mod",
		"modules.txt:4: want a folder, yes or no, and real or nothing",
	}, "\n")
	if got := texts(t, Modules, files); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// graph builds a package list from "path: imports" lines; a path with a dot in
// its first element is a foreign module's root, one without is standard.
func graph(lines ...string) map[string]*Package {
	out := make(map[string]*Package)
	for _, line := range lines {
		p, imports, _ := strings.Cut(line, ":")
		pkg := &Package{ImportPath: p, Imports: strings.Fields(imports)}
		first, _, _ := strings.Cut(p, "/")
		switch _, ours := relative(p); {
		case ours:
			pkg.Module = &struct{ Path string }{Module}
		case strings.Contains(first, "."):
			pkg.Module = &struct{ Path string }{p}
		default:
			pkg.Standard = true
		}
		out[p] = pkg
	}
	return out
}

func TestDepsRule(t *testing.T) {
	const m = Module + "/"
	packages := graph(
		m+"core: fmt "+m+"core/sub example.com/a",
		m+"core/sub: example.com/b",
		m+"core/coretest: testing "+m+"core",
		m+"other: "+m+"core "+m+"internal/x",
		m+"internal/x: testing",
		m+"lost: fmt",
		"fmt:", "testing: fmt", "example.com/a:", "example.com/b: golang.org/x/sys", "golang.org/x/sys:",
	)
	rows := []Row{
		{"core/...", []string{"core"}, []string{"example.com/a", "golang.org/x/sys"}},
		{"other", nil, []string{"example.com/a", "example.com/b", "golang.org/x/sys"}},
		{"internal/...", nil, nil},
	}
	var got []string
	for _, f := range Deps(packages, rows) {
		got = append(got, f.String())
	}
	want := []string{
		"core/coretest: links a module that is not in its row: M/core/coretest > M/core > M/core/sub > example.com/b",
		"core/sub: links a module that is not in its row: M/core/sub > example.com/b",
		"core: links a module that is not in its row: M/core > M/core/sub > example.com/b",
		"internal/x: links what is for tests or for programs: M/internal/x > testing",
		"lost: package has no row in the table of dependencies",
		"other: links what is for tests or for programs: M/other > M/internal/x > testing",
		"other: must not import: M/other > M/core",
		"other: must not import: M/other > M/core > M/core/sub",
	}
	for i := range want {
		want[i] = strings.ReplaceAll(want[i], "M/", m)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if got := Linked(packages, "core"); !slices.Equal(got, []string{"example.com/a", "example.com/b"}) {
		t.Errorf("linked %q", got)
	}
}

func TestBuildReportsFaults(t *testing.T) {
	if err := Build(root, "GOARCH=none"); err == nil || !strings.Contains(err.Error(), "GOARCH=none") {
		t.Errorf("got %v", err)
	}
}
