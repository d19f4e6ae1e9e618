package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// An operator's command that cannot read the database says which of three things is the reason: the
// login is an application's, the schema is absent, or the schema is of another build.
func TestOperatorCommandsExplainWhyTheyCannotRead(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	urls := map[string]string{
		"application": d.LoginURL("application", "in role ojs_producer, ojs_worker"),
		"tenant":      d.TenantURL("acme"),
		"stranger":    d.GroupURL(""),
		"operator":    d.OperatorURL(),
	}
	wants := func(url string, want []string, unwanted ...string) {
		t.Helper()
		for _, command := range [][]string{{"top", "--once"}, {"doctor"}, {"admin", "queues"}} {
			var stdout, stderr bytes.Buffer
			args := append([]string{"ojs-pg", command[0], "--database-url", urls[url]}, command[1:]...)
			if status := run(args, &stdout, &stderr); status == 0 {
				t.Errorf("%v as %s succeeds", command, url)
			}
			text := stdout.String() + stderr.String()
			for _, part := range want {
				if !strings.Contains(text, part) {
					t.Errorf("%v as %s says, without %q:\n%s", command, url, part, text)
				}
			}
			for _, part := range unwanted {
				if strings.Contains(text, part) {
					t.Errorf("%v as %s says, with %q:\n%s", command, url, part, text)
				}
			}
		}
	}
	login := []string{"administrator's URL", "member of ojs_operator or ojs_service", "<data dir>/admin-url"}
	wrong := []string{"grant ojs_service", "does not have this program's schema", "failed-migration"}
	wants("application", append(login, "is an application's: it is a member of ojs_producer and ojs_worker only"), wrong...)
	wants("tenant", append(login, "is a tenant's"), wrong...)
	wants("stranger", append(login, "the rights of no group of ojs-pg"), wrong...)

	pgtest.Exec(t, d.Pool, "update ojs.schema_hash set hash = 'another'")
	wants("operator", []string{"its tables were made by a build before the first release"}, login...)
	wants("application", login, wrong...)

	pgtest.Exec(t, d.Pool, "drop schema ojs cascade")
	for url := range urls {
		wants(url, []string{"there is none yet. Run: ojs-pg migrate up"}, login...)
	}
}
