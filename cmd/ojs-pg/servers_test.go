package main

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// Three servers, and the one on duty is killed, twice: what is due later becomes available all the same, once.
func TestServersDieOnDuty(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	servers := map[string]*program{}
	for i := range 3 {
		name := fmt.Sprintf("server%d", i+1)
		servers[name] = launch(t, []string{"DATABASE_URL=" + d.ServiceURL + "&application_name=" + name},
			"serve", "--listen", "127.0.0.1:0")
		servers[name].find(`msg=(serving)`)
	}
	const holder = `
		select coalesce((
			select split_part(a.application_name, ' ', 1) from ojs.duty u
			join pg_stat_activity a on a.pid = u.backend and u.session like '% ' || a.application_name
		), '')`
	// A job whose time has come before its insert is done is available at once, so the first one has a second.
	if _, err := d.Pool.Exec(t.Context(), `
		insert into ojs.jobs (tenant_id, type, scheduled_at)
		select 'acme', 'later', clock_timestamp() + interval '1 second' + n * interval '20 milliseconds' from generate_series(1, 400) n;
		insert into ojs.jobs (tenant_id, type, queue) select 'acme', 'lost', 'lost' from generate_series(1, 20);
		select from ojs.fetch('{lost}', 20, p_visibility_timeout_ms => 4000)`); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(time.Minute)
	until := func(sql string, ok func(string) bool) string {
		t.Helper()
		for {
			if got := query(t, d.URL, sql); ok(got) {
				return got
			} else if time.Now().After(deadline) {
				t.Fatalf("%s: still %q", sql, got)
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
	for len(servers) > 1 {
		name := until(holder, func(name string) bool { return servers[name] != nil })
		servers[name].signal(syscall.SIGKILL)
		killed := time.Now()
		delete(servers, name)
		next := until(holder, func(next string) bool { return servers[next] != nil })
		t.Logf("%s, on duty, was killed; %s took over after %d ms", name, next, time.Since(killed).Milliseconds())
	}
	until("select count(*)::text from ojs.job where state <> 'available'", func(n string) bool { return n == "0" })
	for what, sql := range map[string]string{
		"400 became due once":     "select sum(jobs)::text from ojs.journal where from_state = 'scheduled' and to_state = 'available'",
		"20 were taken back once": "select count(*)::text from ojs.release where from_state = 'active' and to_state = 'available'",
	} {
		if got := query(t, d.URL, sql); got != strings.Fields(what)[0] {
			t.Errorf("want that %s, got %s", what, got)
		}
	}
	for name, p := range servers {
		p.signal(syscall.SIGTERM)
		if status := p.wait(); status != 0 {
			t.Errorf("%s ended with %d", name, status)
		}
	}
	if got := query(t, d.URL, "select (holder is null)::text from ojs.duty"); got != "true" {
		t.Error("the last server did not stand down")
	}
}

// The server's statements go through PgBouncer, what it hears comes from PostgreSQL itself, and its clock is woken by it.
func TestServeThroughPgBouncer(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	p := launch(t, []string{"DATABASE_URL=" + pgtest.Bouncer(t, d.ServiceURL), "OJS_DIRECT_URL=" + d.ServiceURL},
		"serve", "--listen", "127.0.0.1:0")
	base := p.find(`msg=serving address=(http://\S+)$`)
	got := make(chan string, 1)
	go func() {
		req, err := http.NewRequestWithContext(t.Context(), "POST", base+"/ojs/v1/workers/fetch",
			strings.NewReader(`{"queues": ["default"], "worker_id": "w"}`))
		if err != nil {
			t.Error(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Prefer", "wait=50")
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Error(err)
			got <- ""
			return
		}
		defer res.Body.Close()
		raw, err := io.ReadAll(res.Body)
		if err != nil {
			t.Error(err)
		}
		got <- string(raw)
	}()
	d.Eventually("a worker waits, and the clock is on duty and sleeps", `
		select count(*) > 0 and exists (select from ojs.sleeper) and exists (select from ojs.duty where backend is not null)
		from ojs.waiter`)
	id := query(t, d.URL, "select id::text from ojs.enqueue('a', p_scheduled_at => clock_timestamp() + interval '200 milliseconds')")
	if answer := <-got; !strings.Contains(answer, id) {
		t.Errorf("the worker that waited got %s", answer)
	}
	if status, answer := request(t, "POST", base+"/ojs/v1/workers/ack", `{"job_id": "`+id+`"}`); status != 200 {
		t.Errorf("ACK answers %d: %s", status, answer)
	}
	p.signal(syscall.SIGTERM)
	if status := p.wait(); status != 0 || strings.Contains(p.output(), "level=WARN") {
		t.Errorf("it ended with %d", status)
	}
}

// Without PostgreSQL's own address notifications and prepared statements would be lost.
func TestServeNeedsADirectURLBehindPgBouncer(t *testing.T) {
	t.Parallel()
	p := launch(t, []string{"DATABASE_URL=" + pgtest.Bouncer(t, pgtest.New(t).ServiceURL)}, "serve", "--listen", "127.0.0.1:0")
	if status := p.wait(); status != 1 || !strings.Contains(p.output(), "PgBouncer in transaction mode") ||
		!strings.Contains(p.output(), "--direct-url, or OJS_DIRECT_URL") {
		t.Errorf("it ended with %d", status)
	}
}

// The address for notifications had another name before.
func TestDirectURLByEitherName(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	for _, name := range []string{"OJS_DIRECT_URL", "OJS_LISTEN_URL"} {
		status, output := finish(t, []string{"DATABASE_URL=" + d.ServiceURL, name + "=nonsense://"}, "serve", "--listen", "127.0.0.1:0")
		if status != 1 || !strings.Contains(output, "the URL to listen at") {
			t.Errorf("with a bad %s it ends with %d: %s", name, status, output)
		}
	}
}

func TestAfterRestore(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	id := query(t, d.URL, "select id::text from ojs.enqueue('a')")
	p := launch(t, []string{"DATABASE_URL=" + d.ServiceURL}, "serve", "--listen", "127.0.0.1:0", "--after-restore")
	p.find(`level=WARN msg="(dispatch is held)[^"]*" .*available=1`)
	base := p.find(`msg=serving address=(http://\S+)$`)
	fetch := `{"queues": ["default"], "worker_id": "w"}`
	if status, answer := request(t, "POST", base+"/ojs/v1/workers/fetch", fetch); status != 200 || strings.Contains(answer, id) {
		t.Errorf("a FETCH answers %d: %s", status, answer)
	}
	if status, answer := request(t, "GET", base+"/ojs/v1/admin/dispatch", ""); status != 200 ||
		!strings.Contains(answer, `{"dispatch":{"held":true,"held_at":"20`) {
		t.Errorf("the dispatch is %d: %s", status, answer)
	}
	// A server that is started without the switch does not change it.
	second := launch(t, []string{"DATABASE_URL=" + d.ServiceURL}, "serve", "--listen", "127.0.0.1:0")
	second.find(`msg="(dispatch is held)`)
	if status, answer := request(t, "POST", base+"/ojs/v1/admin/dispatch/resume", ""); status != 200 ||
		!strings.Contains(answer, `"held":false,"held_at":null,"available":1`) {
		t.Errorf("resuming answers %d: %s", status, answer)
	}
	if status, answer := request(t, "POST", base+"/ojs/v1/workers/fetch", fetch); status != 200 || !strings.Contains(answer, id) {
		t.Errorf("resumed, a FETCH answers %d: %s", status, answer)
	}
	if status, answer := request(t, "POST", base+"/ojs/v1/admin/dispatch/hold", ""); status != 200 ||
		!strings.Contains(answer, `"held":true`) {
		t.Errorf("holding answers %d: %s", status, answer)
	}
}
