package lint

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
)

// Module is the path of the root module.
const Module = "github.com/stator-go/stator"

// A Row says what the packages it matches may depend on, directly or not.
type Row struct {
	// Package is a path below the root module; with /... those below it too. The
	// first row that matches counts.
	Package string
	// Ours lists packages of this module, each with what lies below it. Packages
	// named internal may be used by all.
	Ours []string
	// Modules lists other modules.
	Modules []string
}

// Short names of modules in [Allowed].
const (
	blake3  = "lukechampine.com/blake3"
	cpuid   = "github.com/klauspost/cpuid/v2"
	xxh3    = "github.com/zeebo/xxh3"
	xsync   = "github.com/puzpuzpuz/xsync/v3"
	lru     = "github.com/hashicorp/golang-lru/v2"
	sys     = "golang.org/x/sys"
	xsyncGo = "golang.org/x/sync"
	testify = "github.com/stretchr/testify"
	goleak  = "go.uber.org/goleak"
	rapid   = "pgregory.net/rapid"
)

// Allowed is the table of dependencies. A new package needs a row.
func Allowed() []Row {
	hash := []string{blake3, cpuid, xxh3}
	core := append([]string{xsync, lru, sys, xsyncGo}, hash...)
	return []Row{
		{".", nil, nil},
		{"kvindex/block", nil, hash},
		{"kvindex/...", []string{"kvindex"}, core},
		{"router/...", []string{"router", "kvindex"}, core},
		{"engine", []string{"kvindex/block"}, hash},
		{"engine/openai", []string{"engine", "kvindex/block"}, core},
		{"engine/vllm", []string{"engine", "engine/openai", "kvindex"}, core},
		{"engine/pool", []string{"engine", "router", "kvindex"}, core},
		{"engine/sim/...", []string{"engine", "kvindex", "kvbm"}, core},
		{"engine/...", []string{"engine", "router", "kvindex"}, core},
		{"discovery/...", []string{"discovery"}, nil},
		{"internal/...", []string{"kvindex", "engine", "router", "discovery"}, core},
		{"examples/...", []string{"kvindex", "engine", "router", "discovery", "examples"}, core},
	}
}

// rowOf finds the row of a package, nil if there is none.
func rowOf(rows []Row, pkg string) *Row {
	for i := range rows {
		if matches(rows[i].Package, pkg) {
			return &rows[i]
		}
	}
	return nil
}

func matches(pattern, pkg string) bool {
	tree, ok := strings.CutSuffix(pattern, "/...")
	return pkg == pattern || ok && within(pkg, tree)
}

func within(pkg, tree string) bool { return pkg == tree || strings.HasPrefix(pkg, tree+"/") }

// testOnly are modules and packages that no shipped package may link, except
// conformance packages, whose name ends in test: only tests import those.
var testOnly = []string{
	"testing", "net/http/httptest", testify, rapid, goleak, "github.com/cockroachdb/datadriven",
	"google.golang.org/grpc", "k8s.io", "go.opentelemetry.io", "net/http/pprof", "expvar",
}

// A Package is what the go command tells about one.
type Package struct {
	ImportPath string
	Standard   bool
	Imports    []string
	Module     *struct{ Path string }
}

// List asks the go command for the root module's packages and all they need,
// by import path.
func List(root string) (map[string]*Package, error) {
	out, err := goCommand(root, nil, "list", "-deps", "-json=ImportPath,Standard,Imports,Module", "./...")
	if err != nil {
		return nil, err
	}
	packages := make(map[string]*Package)
	for d := json.NewDecoder(strings.NewReader(out)); ; {
		p := new(Package)
		if err := d.Decode(p); errors.Is(err, io.EOF) {
			return packages, nil
		} else if err != nil {
			return nil, fmt.Errorf("lint: go list: %w", err)
		}
		packages[p.ImportPath] = p
	}
}

// goCommand runs the go command in dir with more variables in its environment,
// and returns its output.
func goCommand(dir string, more []string, args ...string) (string, error) {
	cmd := exec.Command("go", args...)
	cmd.Dir = dir
	cmd.Env = append(cmd.Environ(), more...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("lint: go %s (%s): %w\n%s", strings.Join(args, " "), strings.Join(more, " "), err, stderr.String())
	}
	return string(out), nil
}

// closure lists everything a package links, itself included, each with the
// package that brought it in.
func closure(packages map[string]*Package, pkg string) map[string]string {
	from := map[string]string{pkg: ""}
	for queue := []string{pkg}; len(queue) > 0; queue = queue[1:] {
		p := packages[queue[0]]
		if p == nil {
			continue
		}
		for _, imp := range p.Imports {
			if _, seen := from[imp]; !seen {
				from[imp] = p.ImportPath
				queue = append(queue, imp)
			}
		}
	}
	return from
}

// chain tells how a package came into a closure.
func chain(from map[string]string, pkg string) string {
	out := pkg
	for pkg = from[pkg]; pkg != ""; pkg = from[pkg] {
		out = pkg + " > " + out
	}
	return out
}

// relative is a package's path below the module, false for foreign ones.
func relative(pkg string) (string, bool) {
	if pkg == Module {
		return ".", true
	}
	return strings.CutPrefix(pkg, Module+"/")
}

// Deps compares every package of the root module with its row.
func Deps(packages map[string]*Package, rows []Row) []Finding {
	var out []Finding
	for ip := range packages {
		rel, ours := relative(ip)
		if !ours {
			continue
		}
		row := rowOf(rows, rel)
		if row == nil {
			out = append(out, Finding{rel, 0, "package has no row in the table of dependencies"})
			continue
		}
		from := closure(packages, ip)
		forTests := strings.HasSuffix(path.Base(rel), "test")
		for dep := range from {
			if bad := row.refuses(packages[dep], rel, dep, forTests); bad != "" {
				out = append(out, Finding{rel, 0, bad + ": " + chain(from, dep)})
			}
		}
	}
	slices.SortFunc(out, func(a, b Finding) int { return strings.Compare(a.String(), b.String()) })
	return out
}

// refuses says why a dependency is not allowed, or nothing.
func (r *Row) refuses(p *Package, rel, dep string, forTests bool) string {
	if slices.ContainsFunc(testOnly, func(t string) bool { return within(dep, t) }) {
		if forTests {
			return ""
		}
		return "links what is for tests or for programs"
	}
	if p == nil || p.Standard || dep == "C" {
		return ""
	}
	if ours, ok := relative(dep); ok {
		if ours == rel || isInternal(ours) || slices.ContainsFunc(r.Ours, func(t string) bool { return within(ours, t) }) {
			return ""
		}
		return "must not import"
	}
	if p.Module != nil && slices.Contains(r.Modules, p.Module.Path) {
		return ""
	}
	return "links a module that is not in its row"
}

// Linked lists the modules that a program importing only this package links,
// without the standard library, this module, x/sys and x/sync.
func Linked(packages map[string]*Package, rel string) []string {
	var out []string
	for dep := range closure(packages, Module+"/"+rel) {
		p := packages[dep]
		if p == nil || p.Standard || p.Module == nil || slices.Contains([]string{Module, sys, xsyncGo}, p.Module.Path) {
			continue
		}
		out = append(out, p.Module.Path)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Build compiles every package of the root module under another environment.
func Build(root string, env ...string) error {
	_, err := goCommand(root, env, "build", "-o", os.DevNull, "./...")
	return err
}
