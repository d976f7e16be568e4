package lint

import (
	"path/filepath"
	"strings"
	"testing"
)

const root = "../.."

func report(t *testing.T, findings []Finding) {
	t.Helper()
	for _, f := range findings {
		t.Error(f)
	}
}

func TestTree(t *testing.T) {
	tree, err := Load(root)
	if err != nil {
		t.Fatal(err)
	}
	if len(tree.Files) < 50 {
		t.Fatalf("only %d Go files under %s", len(tree.Files), root)
	}
	for _, r := range []struct {
		name string
		rule func(*Tree) []Finding
	}{
		{"effects", Effects},
		{"globals", Globals},
		{"comments", Comments},
		{"lengths", Lengths},
		{"skips", Skips},
		{"tests", Tests},
		{"paths", Paths},
		{"modules", Modules},
		{"readme", Readme},
	} {
		t.Run(r.name, func(t *testing.T) { report(t, r.rule(tree)) })
	}
}

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
