package httpapi

import (
	"fmt"
	"testing"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// A role that is set up for other programs: jobs are taken, handed out and acknowledged as anywhere.
func TestSettingsOfTheRoleChangeNoAnswer(t *testing.T) {
	t.Parallel()
	for name, value := range map[string]string{
		"default_transaction_isolation": "repeatable read", "standard_conforming_strings": "off", "client_encoding": "LATIN1",
		"row_security": "off",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := pgtest.New(t)
			pgtest.Exec(t, d.Pool, fmt.Sprintf("alter role %s set %s = '%s'", d.RoleName("service"), name, value))
			a := &api{t: t, db: d, pool: d.Pool, log: &pgtest.Log{}}
			a.serve(d.Open())
			const args = `["日本語", "C:\\x"]`
			a.do("POST", "/ojs/v1/jobs", `{"type":"a","args":`+args+`,"options":{"queue":"q"}}`).want(201)
			if got := pgtest.One[string](t, d.Pool, "select args::text from ojs.job"); got != args {
				t.Errorf("stored is %s", got)
			}
			a.do("POST", "/ojs/v1/cron", `{"name":"c","cron":"0 3 * * *","type":"a","args":[]}`).want(201)
			r := a.do("POST", "/ojs/v1/workers/fetch", `{"queues":["q"],"worker_id":"w"}`).want(200)
			if got := r.text("jobs.0.args.0") + r.text("jobs.0.args.1"); got != `日本語C:\x` {
				t.Errorf("a FETCH hands out %q", got)
			}
			settle := fmt.Sprintf(`{"job_id":%q,"lease":%q}`, r.text("jobs.0.id"), r.text("jobs.0.lease"))
			a.do("POST", "/ojs/v1/workers/ack", settle).want(200)
		})
	}
}
