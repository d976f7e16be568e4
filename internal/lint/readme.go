package lint

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
)

// Readme finds a missing README, links to files that do not exist in any
// Markdown file, and commands in ```sh blocks that cannot work: programs and
// packages that are not there, unknown make targets, scripts that are missing.
func Readme(t *Tree) []Finding {
	var out []Finding
	if len(t.Texts["README.md"]) == 0 {
		out = append(out, Finding{"README.md", 0, "is missing"})
	}
	for p, data := range t.Texts {
		if path.Ext(p) != ".md" {
			continue
		}
		fence := ""
		for i, line := range strings.Split(string(data), "\n") {
			if mark, ok := strings.CutPrefix(strings.TrimSpace(line), "```"); ok {
				if fence == "" {
					fence = "```" + mark
				} else {
					fence = ""
				}
				continue
			}
			var faults []string
			switch fence {
			case "":
				faults = t.links(path.Dir(p), line)
			case "```sh", "```bash", "```console":
				faults = t.command(line)
			}
			for _, text := range faults {
				out = append(out, Finding{p, i + 1, text})
			}
		}
	}
	slices.SortFunc(out, func(a, b Finding) int { return strings.Compare(a.String(), b.String()) })
	return out
}

// links checks the relative links of one line of prose.
func (t *Tree) links(dir, line string) []string {
	var out []string
	for _, m := range regexp.MustCompile(`\]\(([^)\s]+)\)`).FindAllStringSubmatch(line, -1) {
		target, _, _ := strings.Cut(m[1], "#")
		if target == "" || strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
			continue
		}
		if p := path.Join(dir, target); !t.exists(p) {
			out = append(out, fmt.Sprintf("link to %s, which does not exist", p))
		}
	}
	return out
}

// exists says whether the tree has a text file or folder of that name.
func (t *Tree) exists(p string) bool {
	p = path.Clean(p)
	if p == "." || p == "LICENSE" {
		return true
	}
	if _, ok := t.Texts[p]; ok {
		return true
	}
	for name := range t.Texts {
		if strings.HasPrefix(name, p+"/") {
			return true
		}
	}
	return slices.ContainsFunc(t.Files, func(f *File) bool { return f.Path == p || strings.HasPrefix(f.Path, p+"/") })
}

// command checks one line of a shell block.
func (t *Tree) command(line string) []string {
	line, _, _ = strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "$ "), " #")
	words := strings.Fields(line)
	for len(words) > 0 && strings.Contains(words[0], "=") { // NAME=value before a command
		words = words[1:]
	}
	var out []string
	switch {
	case len(words) >= 2 && words[0] == "make":
		for _, w := range words[1:] {
			if !strings.HasPrefix(w, "-") && !strings.Contains(w, "=") && !t.target(w) {
				out = append(out, fmt.Sprintf("make %s: the Makefile has no such target", w))
			}
		}
	case len(words) >= 3 && words[0] == "go" && slices.Contains([]string{"run", "test", "build", "vet", "doc"}, words[1]):
		for _, w := range words[2:] {
			if !strings.HasPrefix(w, "./") {
				continue
			}
			dir := strings.TrimSuffix(strings.TrimSuffix(w, "..."), "/")
			if !t.goDir(path.Clean(dir), words[1] == "run", strings.HasSuffix(w, "...")) {
				out = append(out, fmt.Sprintf("go %s %s: no such package", words[1], w))
			}
			if words[1] == "run" {
				break // the rest are the program's own arguments
			}
		}
	case len(words) >= 1 && (strings.HasPrefix(words[0], "./") || strings.HasPrefix(words[0], "scripts/") || strings.HasPrefix(words[0], ".ci/")):
		if !t.exists(words[0]) {
			out = append(out, fmt.Sprintf("%s does not exist", words[0]))
		}
	}
	return out
}

// target says whether the Makefile has a rule of that name.
func (t *Tree) target(name string) bool {
	for _, line := range strings.Split(string(t.Texts["Makefile"]), "\n") {
		left, _, ok := strings.Cut(line, ":")
		if ok && !strings.HasPrefix(line, "\t") && !strings.HasPrefix(line, ".PHONY") && slices.Contains(strings.Fields(left), name) {
			return true
		}
	}
	return false
}

// goDir says whether a folder has Go files: a program, or below it, as asked.
func (t *Tree) goDir(dir string, program, below bool) bool {
	return slices.ContainsFunc(t.Files, func(f *File) bool {
		in := f.Dir() == dir || below && (dir == "." || strings.HasPrefix(f.Dir()+"/", dir+"/"))
		return in && !(program && !f.Main())
	})
}
