package httpapi

import (
	"go/ast"
	"go/parser"
	gotoken "go/token"
	"go/types"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A file uses only names of files after it in the list of doc.go, but for the methods of Server.
func TestFilesStandInOrder(t *testing.T) {
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	var order []string
	for _, line := range regexp.MustCompile(`(?m)^//\t.*:\s+(.*)$`).FindAllStringSubmatch(string(doc), -1) {
		order = append(order, strings.Fields(line[1])...)
	}
	set := gotoken.NewFileSet()
	paths, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	var files []*ast.File
	for _, path := range paths {
		name := strings.TrimSuffix(path, ".go")
		if strings.HasSuffix(name, "_test") || name == "doc" {
			continue
		}
		if !slices.Contains(order, name) {
			t.Errorf("doc.go does not name %s", path)
		}
		file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	if len(files) != len(order) {
		t.Errorf("doc.go names %d files, and there are %d", len(order), len(files))
	}
	// Other packages are not read: their names are not known then, which is no fault here.
	checker := types.Config{Importer: nothing{}, Error: func(error) {}}
	uses := map[*ast.Ident]types.Object{}
	pkg, _ := checker.Check("httpapi", set, files, &types.Info{Uses: uses})
	place := func(pos gotoken.Pos) string { return strings.TrimSuffix(set.Position(pos).Filename, ".go") }
	for id, object := range uses {
		if object.Pkg() != pkg || object.Name() == "Server" || !object.Pos().IsValid() {
			continue
		}
		if field, ok := object.(*types.Var); ok && field.IsField() {
			continue
		}
		method, ok := object.(*types.Func)
		if ok && method.Signature().Recv() != nil && strings.HasSuffix(method.Signature().Recv().Type().String(), ".Server") {
			continue
		}
		if from, to := place(id.Pos()), place(object.Pos()); slices.Index(order, from) > slices.Index(order, to) {
			t.Errorf("%s: %s is in %s.go, which stands before %s.go", set.Position(id.Pos()), object.Name(), to, from)
		}
	}
}

// nothing is an importer for go/types that returns empty packages.
type nothing struct{}

func (nothing) Import(path string) (*types.Package, error) {
	pkg := types.NewPackage(path, path[strings.LastIndexByte(path, '/')+1:])
	pkg.MarkComplete()
	return pkg, nil
}
