package lint

import "go/ast"

// forbidden are names that shipped code must not use, by import path.
var forbidden = map[string]map[string]string{
	"os": {
		"Getenv": env, "LookupEnv": env, "Environ": env, "ExpandEnv": env,
		"Setenv": env, "Unsetenv": env, "Clearenv": env,
	},
	"syscall": {"Getenv": env, "Environ": env, "Setenv": env},
	"net/http": {
		"ProxyFromEnvironment": proxy, "DefaultTransport": proxy,
		"DefaultClient": proxy, "Get": proxy, "Post": proxy, "PostForm": proxy, "Head": proxy,
		"DefaultServeMux": global, "Handle": global, "HandleFunc": global,
	},
	"net/http/httputil": {"NewSingleHostReverseProxy": proxy},
	"expvar":            {"Publish": global, "NewInt": global, "NewMap": global, "NewString": global, "NewFloat": global},
}

// forbiddenInLibraries are fine in programs only.
var forbiddenInLibraries = map[string]map[string]string{
	"flag": {"Parse": global, "String": global, "Int": global, "Bool": global, "Duration": global, "Var": global, "CommandLine": global},
	"log":  {"Print": global, "Printf": global, "Println": global, "Default": global, "SetOutput": global, "SetFlags": global, "Fatal": exit, "Fatalf": exit, "Fatalln": exit},
	"log/slog": {
		"Default": global, "SetDefault": global,
		"Info": global, "Warn": global, "Error": global, "Debug": global,
	},
	"os":  {"Exit": exit},
	"fmt": {"Print": stdout, "Printf": stdout, "Println": stdout},
}

const (
	env    = "reads or changes the environment; take an option instead"
	proxy  = "may take a proxy from the environment; make a Client with a Transport of its own"
	global = "uses state that the whole process shares"
	exit   = "ends the process"
	stdout = "writes to standard output"
)

// Effects finds init functions and uses of the environment and of state that
// the whole process shares.
func Effects(t *Tree) []Finding {
	var out []Finding
	for _, f := range t.shipped() {
		for _, d := range f.AST.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
				out = append(out, f.at(fn.Pos(), "func init runs on import; do the work in a constructor"))
			}
		}
		for name, target := range f.imports {
			if name == "_" && target != "embed" {
				out = append(out, f.at(f.AST.Package, "import of %s for its effects", target))
			}
		}
		ast.Inspect(f.AST, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				p, name, ok := f.ref(n)
				if !ok {
					break
				}
				why := forbidden[p][name]
				if why == "" && !f.Main() {
					why = forbiddenInLibraries[p][name]
				}
				if why != "" {
					out = append(out, f.at(n.Pos(), "%s.%s %s", p, name, why))
				}
			case *ast.CompositeLit:
				if p, name, ok := f.ref(n.Type); ok && defaultTransport(p, name) && !hasKey(n, "Transport") {
					out = append(out, f.at(n.Pos(), "%s.%s without Transport %s", p, name, proxy))
				}
			case *ast.CallExpr:
				if id, ok := n.Fun.(*ast.Ident); ok && id.Name == "new" && len(n.Args) == 1 {
					if p, name, ok := f.ref(n.Args[0]); ok && defaultTransport(p, name) {
						out = append(out, f.at(n.Pos(), "%s.%s without Transport %s", p, name, proxy))
					}
				}
			}
			return true
		})
	}
	return out
}

// defaultTransport names types whose zero value uses http.DefaultTransport.
func defaultTransport(p, name string) bool {
	return p == "net/http" && name == "Client" || p == "net/http/httputil" && name == "ReverseProxy"
}

func hasKey(lit *ast.CompositeLit, name string) bool {
	for _, e := range lit.Elts {
		if kv, ok := e.(*ast.KeyValueExpr); ok {
			if id, ok := kv.Key.(*ast.Ident); ok && id.Name == name {
				return true
			}
		}
	}
	return false
}
