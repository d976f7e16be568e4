package lint

import (
	"path/filepath"
	"strings"
	"testing"
)

const root = "../.."

func loadTree(t *testing.T) *Tree {
	t.Helper()
	tree, err := Load(root)
	if err != nil {
		t.Fatal(err)
	}
	if len(tree.Files) < 50 {
		t.Fatalf("only %d Go files under %s", len(tree.Files), root)
	}
	return tree
}

func report(t *testing.T, findings []Finding) {
	t.Helper()
	for _, f := range findings {
		t.Error(f)
	}
}

func TestEffects(t *testing.T)  { report(t, Effects(loadTree(t))) }
func TestGlobals(t *testing.T)  { report(t, Globals(loadTree(t))) }
func TestComments(t *testing.T) { report(t, Comments(loadTree(t))) }
func TestLengths(t *testing.T)  { report(t, Lengths(loadTree(t))) }
func TestSkips(t *testing.T)    { report(t, Skips(loadTree(t))) }
func TestPaths(t *testing.T)    { report(t, Paths(loadTree(t))) }
func TestModules(t *testing.T)  { report(t, Modules(loadTree(t))) }
func TestTests(t *testing.T)    { report(t, Tests(loadTree(t))) }
func TestReadme(t *testing.T)   { report(t, Readme(loadTree(t))) }

func TestDeps(t *testing.T) {
	packages, err := List(root)
	if err != nil {
		t.Fatal(err)
	}
	report(t, Deps(packages, Allowed()))
	if packages[Module+"/router"] == nil {
		t.Fatal("package router is not in the list")
	}
	const most = 5
	if got := Linked(packages, "router"); len(got) > most {
		t.Errorf("a program that imports only router links %d modules, at most %d: %s", len(got), most, strings.Join(got, ", "))
	}
}

func TestBuilds(t *testing.T) {
	if err := Build(filepath.Clean(root), "GOARCH=386", "CGO_ENABLED=0"); err != nil {
		t.Error(err)
	}
	if err := Build(filepath.Clean(root), "CGO_ENABLED=0"); err != nil {
		t.Error(err)
	}
}
