package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// docs/operate/walk.md works as it is typed: three tiers, a flood, a throttle, and its end.
func TestMT142MT143TheWalkOfAnOperator(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	server := launch(t, []string{"DATABASE_URL=" + d.ServiceURL}, "serve", "--listen", "127.0.0.1:0")
	address := server.find(`address=(http://\S+)`)
	page, err := os.ReadFile("../../docs/operate/walk.md")
	if err != nil {
		t.Fatal(err)
	}
	var script strings.Builder
	script.WriteString("set -eu -o pipefail\n")
	blocks := regexp.MustCompile("(?s)```bash\n(.*?)```").FindAllSubmatch(page, -1)
	for _, block := range blocks {
		script.Write(bytes.ReplaceAll(block[1], []byte("http://localhost:8080"), []byte(address)))
	}
	if len(blocks) < 8 {
		t.Fatalf("there are %d blocks", len(blocks))
	}
	walk := exec.CommandContext(context.Background(), "bash", "-c", script.String())
	walk.Dir = t.TempDir()
	walk.Env = environment("DATABASE_URL="+d.ServiceURL, "PATH="+filepath.Dir(binary)+":"+os.Getenv("PATH"))
	out, err := walk.CombinedOutput()
	if err != nil {
		t.Fatalf("%v (it needs curl):\n%s", err, out)
	}
	for _, want := range []string{
		`TENANT_LIMIT_EXCEEDED`, `Tenant 'enterprise-acme' has exceeded max_queue_depth (3000)`,
		"the last job of standard-beta waits behind",
	} {
		if !bytes.Contains(out, []byte(want)) {
			t.Errorf("there is no %s in\n%s", want, out)
		}
	}
	const has = `select string_agg(concat_ws(' ', resource, maximum), ', ' order by resource) from ojs.limits
		where tenant_id = 'enterprise-acme'`
	if got := query(t, d.URL, has); got != "max_concurrency 50, max_enqueue_rate 5000, max_queue_depth 200000" {
		t.Errorf("in the end it has %s", got)
	}
	if got := query(t, d.URL, "select count(*)::text from ojs.throttles"); got != "0" {
		t.Errorf("%s throttles are left", got)
	}
}
