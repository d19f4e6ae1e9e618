// Command shape prints what does not fit a screen in the Go code below the working directory and in db/queries: lines of more than 140
// columns, a tab being four, and functions of more than 60 lines outside tests. For migrations, db/shape_test.go does the same.
package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"
)

const (
	maxColumns       = 140
	maxFunctionLines = 60 // from "func" to the closing brace
	generated        = "internal/sqlcgen"
	queries          = "db/queries" // what it is generated from
)

func main() {
	findings, err := look(".")
	if err != nil {
		fmt.Fprintln(os.Stderr, "shape:", err)
		os.Exit(2)
	}
	if len(findings) > 0 {
		fmt.Println(strings.Join(findings, "\n"))
		os.Exit(1)
	}
}

func look(root string) (findings []string, err error) {
	err = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		hidden := strings.HasPrefix(entry.Name(), ".") && path != root
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (hidden || path == generated):
			return filepath.SkipDir
		case entry.IsDir() || filepath.Ext(path) != ".go" && filepath.Dir(path) != queries:
			return nil
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		findings = append(findings, longLines(path, source)...)
		if strings.HasSuffix(path, "_test.go") || filepath.Ext(path) != ".go" {
			return nil
		}
		functions, err := longFunctions(path, source)
		findings = append(findings, functions...)
		return err
	})
	return findings, err
}

func longLines(path string, source []byte) (findings []string) {
	number := 0
	for line := range bytes.Lines(source) {
		number++
		expanded := bytes.ReplaceAll(bytes.TrimRight(line, "\n"), []byte("\t"), []byte("    "))
		if n := utf8.RuneCount(expanded); n > maxColumns {
			findings = append(findings, fmt.Sprintf("%s:%d: the line has %d columns, at most %d", path, number, n, maxColumns))
		}
	}
	return findings
}

func longFunctions(path string, source []byte) (findings []string, err error) {
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, path, source, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	for _, declaration := range file.Decls {
		function, ok := declaration.(*ast.FuncDecl)
		if !ok {
			continue
		}
		first, last := set.Position(function.Pos()).Line, set.Position(function.End()).Line
		if n, name := last-first+1, function.Name.Name; n > maxFunctionLines {
			findings = append(findings, fmt.Sprintf("%s:%d: %s has %d lines, at most %d", path, first, name, n, maxFunctionLines))
		}
	}
	return findings, nil
}
