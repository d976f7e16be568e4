package lint

import (
	"fmt"
	"go/ast"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// faultsPage lists the cases that others got wrong and the tests that hold them.
const faultsPage = "docs/faults.md"

// faultIDs are the series of cases, with the number of each.
var faultIDs = []struct {
	series string
	last   int
}{{"H", 8}, {"E", 25}, {"I", 20}, {"R", 17}, {"EN", 14}}

var (
	faultRow  = regexp.MustCompile(`^\| *([A-Z]+[0-9]+) *\|`)
	codeSpan  = regexp.MustCompile("`([^`]+)`")
	testNamed = regexp.MustCompile(`^(\S+) ((?:Test|Fuzz|Example)\w*)$`)
)

// faults finds cases that are listed twice or not at all, rows that name neither
// a test nor a reason, tests that do not exist, and scripts that do not exist or
// do not name the case.
func faults(t *Tree, read func(path string) ([]byte, error)) []Finding {
	tests := make(map[string]bool)
	for _, f := range t.Files {
		if !f.Test {
			continue
		}
		for _, d := range f.AST.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil {
				tests[f.Dir()+" "+fn.Name.Name] = true
			}
		}
	}
	var out []Finding
	seen := make(map[string]bool)
	for i, line := range strings.Split(string(t.Texts[faultsPage]), "\n") {
		m := faultRow.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		bad := func(format string, args ...any) {
			out = append(out, Finding{faultsPage, i + 1, m[1] + ": " + fmt.Sprintf(format, args...)})
		}
		if seen[m[1]] {
			bad("is listed twice")
		}
		seen[m[1]] = true
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 4 {
			bad("has %d cells, want 4", len(cells))
			continue
		}
		held := strings.TrimSpace(cells[3])
		if reason, ok := strings.CutPrefix(held, "not yet: "); ok && len(reason) > 10 {
			continue
		}
		spans := codeSpan.FindAllStringSubmatch(held, -1)
		if len(spans) == 0 {
			bad("names neither a test nor why there is none")
		}
		for _, s := range spans {
			if testNamed.MatchString(s[1]) {
				if !tests[s[1]] {
					bad("there is no %s", s[1])
				}
				continue
			}
			script, err := read(s[1])
			switch {
			case err != nil:
				bad("there is no %s", s[1])
			case !regexp.MustCompile(`\b` + m[1] + `\b`).Match(script):
				bad("%s does not name it", s[1])
			}
		}
	}
	for _, s := range faultIDs {
		for n := 1; n <= s.last; n++ {
			if id := fmt.Sprint(s.series, n); !seen[id] {
				out = append(out, Finding{faultsPage, 0, id + " is not listed"})
			}
		}
	}
	return out
}

// Every case of the page is held by a test that exists.
func TestFaultsAreHeld(t *testing.T) {
	tree, err := Load(root)
	if err != nil {
		t.Fatal(err)
	}
	report(t, faults(tree, func(p string) ([]byte, error) { return os.ReadFile(filepath.Join(root, filepath.FromSlash(p))) }))
}

// The check finds what it is for.
func TestFaultsCheckBites(t *testing.T) {
	page := strings.Join([]string{
		"| id | case | seen at | held by |", "|---|---|---|---|",
		"| H1 | a | b | `a TestIs`, `a/testdata/x.txt` |",
		"| H2 | a | b | `a TestIsNot` |",
		"| H3 | a | b | `a Helper` |",
		"| H4 | a | b | `a/testdata/x.txt` |",
		"| H5 | a | b | |",
		"| H6 | a | b | not yet: |",
		"| H7 | a | b | not yet: that part does not exist |",
		"| H7 | a | b | `a TestIs` |",
		"| H8 | a | `a TestIs` |",
	}, "\n")
	for _, s := range faultIDs[1:] {
		for n := 1; n <= s.last; n++ {
			if id := fmt.Sprint(s.series, n); id != "R17" {
				page += "\n| " + id + " | a | b | `a TestIs` |"
			}
		}
	}
	tree, err := Parse(map[string][]byte{
		faultsPage: []byte(page), "a/a_test.go": []byte("package a\n\nfunc TestIs() {}\n"), "a/a.go": []byte("package a\n\nfunc TestIsNot() {}\n"),
	})
	if err != nil {
		t.Fatal(err)
	}
	got := faults(tree, func(p string) ([]byte, error) {
		if p == "a/testdata/x.txt" {
			return []byte("# H1, H44: a case"), nil
		}
		return nil, os.ErrNotExist
	})
	want := []string{
		":4: H2: there is no a TestIsNot", ":5: H3: there is no a Helper", ":6: H4: a/testdata/x.txt does not name it",
		":7: H5: names neither a test nor why there is none", ":8: H6: names neither a test nor why there is none",
		":10: H7: is listed twice", ":11: H8: has 3 cells, want 4", ": R17 is not listed",
	}
	var texts []string
	for _, f := range got {
		texts = append(texts, strings.TrimPrefix(f.String(), faultsPage))
	}
	if !slices.Equal(texts, want) {
		t.Errorf("found\n%s\nwant\n%s", strings.Join(texts, "\n"), strings.Join(want, "\n"))
	}
}
