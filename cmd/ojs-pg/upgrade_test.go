package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ojs-pg/ojs-pg/db"
	"github.com/ojs-pg/ojs-pg/internal/dispatch"
	httpapi "github.com/ojs-pg/ojs-pg/internal/http"
	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/pgtest"
	"github.com/ojs-pg/ojs-pg/internal/sched"
)

// migrationsToCome: the first changes what everybody uses, as a release would: the table of jobs, and the functions that return its rows
// column by column or do most of the work. The second cannot be taken back, and says so.
var migrationsToCome = map[string]string{
	"90001_note.sql": `-- +goose Up
set local role ojs_owner;
alter table ojs.job add column note text default 'as before';
comment on column ojs.job.note is 'Of a later release.';
-- +goose StatementBegin
do $$
declare
    v_before text := (select string_agg('(null::ojs.job).' || quote_ident(a.attname), ', ' order by a.attnum) from pg_catalog.pg_attribute a
        where a.attrelid = 'ojs.job'::regclass and a.attnum > 0 and not a.attisdropped and a.attname <> 'note');
begin
    execute replace(pg_get_functiondef('ojs.fetch'::regproc), 'f.options, f.extra', 'f.options, f.extra, null::text');
    execute pg_get_functiondef('ojs.fetch_many'::regproc);
    execute replace(pg_get_functiondef('ojs.enqueue_many'::regproc), 'o.options, o.extra', 'o.options, o.extra, null::text');
    execute replace(pg_get_functiondef('ojs.settle'::regproc), '(null::ojs.job).*', v_before);
    execute pg_get_functiondef('ojs.ack_many'::regproc);
    execute pg_get_functiondef('ojs._woken'::regproc);
end;
$$;
-- +goose StatementEnd
create index note_idx on ojs.journal (at);
reset role;

-- +goose Down
set local role ojs_owner;
drop index ojs.note_idx;
alter table ojs.job drop column note;
-- +goose StatementBegin
do $$
begin
    execute replace(pg_get_functiondef('ojs.fetch'::regproc), 'f.options, f.extra, null::text', 'f.options, f.extra');
    execute replace(pg_get_functiondef('ojs.enqueue_many'::regproc), 'o.options, o.extra, null::text', 'o.options, o.extra');
end;
$$;
-- +goose StatementEnd
reset role;
`,
	"90002_final.sql": `-- +goose Up
comment on column ojs.job.note is 'Still there.';

-- +goose Down
-- +goose StatementBegin
do $$ begin raise exception 'migration 90002 cannot be taken back: it has thrown away what was there before'; end $$;
-- +goose StatementEnd
`,
}

// upgraded is a server under load while its schema changes.
type upgraded struct {
	t   *testing.T
	db  *pgtest.DB
	web *httptest.Server

	logging  sync.Mutex
	failures bytes.Buffer // what the server logged as an error

	repeated, enqueued, completed atomic.Int64
	over                          atomic.Bool
}

// Write takes the server's log.
func (u *upgraded) Write(line []byte) (int, error) {
	u.logging.Lock()
	defer u.logging.Unlock()
	return u.failures.Write(line)
}

func (u *upgraded) serve(opened *pg.DB) {
	log := slog.New(slog.DiscardHandler)
	ctx, stop := context.WithCancel(context.Background())
	var behind sync.WaitGroup
	listener := pg.NewListener(opened, log)
	dispatcher := dispatch.New(opened, listener, log, dispatch.Options{})
	errorsOnly := slog.New(slog.NewTextHandler(u, &slog.HandlerOptions{Level: slog.LevelError}))
	api := httpapi.New(httpapi.Config{DB: opened, Dispatcher: dispatcher, Logger: errorsOnly})
	u.web = httptest.NewServer(api.Handler())
	behind.Go(func() { listener.Run(ctx) })
	behind.Go(func() { dispatcher.Run(ctx) })
	behind.Go(func() { sched.New(opened, listener, log, 0).Run(ctx) })
	u.t.Cleanup(func() {
		u.web.Close()
		stop()
		behind.Wait()
	})
}

// post repeats what may be repeated.
func (u *upgraded) post(path, body string) (status int, answer map[string]any) {
	for tries := 1; ; tries++ {
		res, err := http.Post(u.web.URL+path, "application/json", strings.NewReader(body))
		if err != nil {
			u.t.Errorf("%s: %v", path, err)
			return 0, nil
		}
		raw, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || json.Unmarshal(raw, &answer) != nil {
			u.t.Errorf("%s answers %d: %s (%v)", path, res.StatusCode, raw, err)
		}
		if res.StatusCode == 503 && res.Header.Get("Retry-After") != "" && tries < 50 {
			u.repeated.Add(1)
			time.Sleep(10 * time.Millisecond)
			continue
		}
		if res.StatusCode >= 400 {
			u.logging.Lock()
			u.t.Errorf("%s answers %d: %s; logged: %.500s", path, res.StatusCode, raw, u.failures.String())
			u.logging.Unlock()
		}
		return res.StatusCode, answer
	}
}

func (u *upgraded) produce(p int) {
	for n := 0; !u.over.Load() && !u.t.Failed(); n++ {
		path, jobs := "/ojs/v1/jobs", int64(1)
		body := fmt.Sprintf(`{"type":"a","args":[%d],"meta":{"tenant_id":"t%d"}}`, n, p)
		if n%10 == 9 {
			path, jobs = "/ojs/v1/jobs/batch", 2
			body = `{"jobs":[{"type":"a","args":[]},{"type":"a","args":[],"options":{"delay_until":"+PT1S"}}]}`
		}
		if status, _ := u.post(path, body); status == 201 {
			u.enqueued.Add(jobs)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func (u *upgraded) work(w int) {
	for !u.t.Failed() {
		_, answer := u.post("/ojs/v1/workers/fetch", fmt.Sprintf(`{"queues":["default"],"count":3,"worker_id":"w%d"}`, w))
		jobs, _ := answer["jobs"].([]any)
		for _, j := range jobs {
			job, _ := j.(map[string]any)
			if status, _ := u.post("/ojs/v1/workers/ack", fmt.Sprintf(`{"job_id":%q,"lease":%q}`, job["id"], job["lease"])); status == 200 {
				u.completed.Add(1)
			}
		}
		if len(jobs) == 0 {
			if u.over.Load() && u.completed.Load() == u.enqueued.Load() {
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
}

// changeSchema migrates up, tries to go down from what cannot be taken back, and goes down and up three times.
func (u *upgraded) changeSchema(opened *pg.DB) {
	t := u.t
	later := pgtest.Migrations(t, migrationsToCome)
	if err := pg.MigrateFrom(t.Context(), later, u.db.URL, pg.Up, nil); err != nil {
		t.Errorf("up: %v", err)
	}
	if err := opened.CheckSchema(t.Context()); err != nil {
		t.Errorf("a server of the old release would not start: %v", err)
	}
	if s, err := pg.Status(t.Context(), u.db.URL); err != nil || s.Current || s.Hash != db.HashOf(later, 90002) {
		t.Errorf("to the old release the schema is %+v (%v)", s, err)
	}
	err := pg.MigrateFrom(t.Context(), later, u.db.URL, pg.DownTo(90001), nil)
	if err == nil || !strings.Contains(err.Error(), "cannot be taken back") {
		t.Errorf("down from what cannot be taken back: %v", err)
	}
	if _, err := u.db.Pool.Exec(t.Context(), "delete from ojs.schema_hash where version = 90002"); err != nil {
		t.Fatal(err)
	}
	one := pgtest.Migrations(t, map[string]string{"90001_note.sql": migrationsToCome["90001_note.sql"]})
	for range 3 {
		if err := pg.MigrateFrom(t.Context(), later, u.db.URL, pg.DownTo(db.Version()), nil); err != nil {
			t.Errorf("down: %v", err)
		}
		if err := pg.MigrateFrom(t.Context(), one, u.db.URL, pg.Up, nil); err != nil {
			t.Errorf("up again: %v", err)
		}
	}
}

// Eight producers and eight workers go on while the schema changes under the server, up and down. No request fails but in a way that says
// that it may be repeated, no job is lost, none is completed twice; and a server of the old release may start beside the new schema.
func TestMigrateUnderLoad(t *testing.T) {
	t.Parallel()
	u := &upgraded{t: t, db: pgtest.New(t)}
	opened := u.db.Open()
	u.serve(opened)
	var producers, workers sync.WaitGroup
	for n := range 8 {
		producers.Go(func() { u.produce(n) })
		workers.Go(func() { u.work(n) })
	}
	u.changeSchema(opened)
	u.over.Store(true)
	producers.Wait()
	workers.Wait()
	t.Logf("%d jobs, of which %d were completed; %d requests were answered that they may be repeated",
		u.enqueued.Load(), u.completed.Load(), u.repeated.Load())
	if u.enqueued.Load() == 0 {
		t.Error("nothing was enqueued")
	}
	var twice int
	if err := u.db.Pool.QueryRow(t.Context(), `
		select sum(w.jobs) - (select count(*) from ojs.job j where j.state = 'completed')
		from ojs.journal w where w.to_state = 'completed'`).Scan(&twice); err != nil || twice != 0 {
		t.Errorf("%d jobs were completed twice (%v)", twice, err)
	}
}
