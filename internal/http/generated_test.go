package httpapi

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A client that is generated from docs/openapi.yaml compiles.
func TestGeneratedClientCompiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	client := filepath.Join(dir, "client.go")
	runTool(t, "tool", "-modfile=tools.mod", "oapi-codegen", "-package", "client", "-generate", "types,client", "-o",
		client, "docs/openapi.yaml")

	// The client is compiled as a package of this module, with the packages of tools.mod that it
	// imports, and never lies in the tree.
	const pkg = "internal/http/testdata/client"
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	overlay := filepath.Join(dir, "overlay.json")
	raw, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(root, pkg, "client.go"): client}})
	if err == nil {
		err = os.WriteFile(overlay, raw, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	runTool(t, "build", "-modfile=tools.mod", "-overlay="+overlay, "./"+pkg)
}

// runTool runs go at the root of the module.
func runTool(t *testing.T, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = "../.."
	cmd.Env = append(os.Environ(), "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go %s: %v\n%.2000s", strings.Join(args, " "), err, out)
	}
}
