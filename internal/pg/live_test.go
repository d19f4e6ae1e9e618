package pg_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	"github.com/ojs-pg/ojs-pg/db"
	httpapi "github.com/ojs-pg/ojs-pg/internal/http"
	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/pgtest"
	"github.com/ojs-pg/ojs-pg/internal/dispatch"
	"github.com/ojs-pg/ojs-pg/internal/sched"
)

// with are the migrations with more behind them.
func with(t *testing.T, more map[string]string) fs.FS {
	t.Helper()
	files := fstest.MapFS{}
	entries, err := fs.ReadDir(db.Files(), ".")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		raw, err := fs.ReadFile(db.Files(), entry.Name())
		if err != nil {
			t.Fatal(err)
		}
		files[entry.Name()] = &fstest.MapFile{Data: raw}
	}
	for name, content := range more {
		files[name] = &fstest.MapFile{Data: []byte(content)}
	}
	return files
}

// Two migrations to come. The first changes what everybody uses, as a release would: the table of jobs, and the functions that return its rows column
// by column or do most of the work. The second cannot be taken back, and says so.
var toCome = map[string]string{
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

// Eight producers and eight workers go on while the schema changes under the server, up and down. No request fails but in a way that says that it may be repeated, no
// job is lost, none is completed twice; and a server of the old release may start beside the new schema.
func TestMigrateUnderLoad(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	log := slog.New(slog.DiscardHandler)
	opened := d.Open()
	ctx, stop := context.WithCancel(context.Background())
	var behind sync.WaitGroup
	listener := pg.NewListener(opened, log)
	dispatcher := dispatch.New(opened, listener, log, dispatch.Options{})
	var failures bytes.Buffer
	var logging sync.Mutex
	api := httpapi.New(httpapi.Config{DB: opened, Dispatcher: dispatcher, Logger: slog.New(slog.NewTextHandler(locked{&logging, &failures}, &slog.HandlerOptions{Level: slog.LevelError}))})
	web := httptest.NewServer(api.Handler())
	behind.Go(func() { listener.Run(ctx) })
	behind.Go(func() { dispatcher.Run(ctx) })
	behind.Go(func() { sched.New(opened, listener, log, 0).Run(ctx) })
	t.Cleanup(func() {
		web.Close()
		stop()
		behind.Wait()
	})

	var repeated, enqueued, completed atomic.Int64
	var over atomic.Bool
	// post repeats what may be repeated.
	post := func(path, body string) (status int, answer map[string]any) {
		for tries := 1; ; tries++ {
			res, err := http.Post(web.URL+path, "application/json", strings.NewReader(body))
			if err != nil {
				t.Errorf("%s: %v", path, err)
				return 0, nil
			}
			raw, err := io.ReadAll(res.Body)
			res.Body.Close()
			if err != nil || json.Unmarshal(raw, &answer) != nil {
				t.Errorf("%s answers %d: %s (%v)", path, res.StatusCode, raw, err)
			}
			if res.StatusCode == 503 && res.Header.Get("Retry-After") != "" && tries < 50 {
				repeated.Add(1)
				time.Sleep(10 * time.Millisecond)
				continue
			}
			if res.StatusCode >= 400 {
				logging.Lock()
				t.Errorf("%s answers %d: %s; logged: %.500s", path, res.StatusCode, raw, failures.String())
				logging.Unlock()
			}
			return res.StatusCode, answer
		}
	}
	var producers, workers sync.WaitGroup
	for p := range 8 {
		producers.Go(func() {
			for n := 0; !over.Load() && !t.Failed(); n++ {
				path, body, jobs := "/ojs/v1/jobs", fmt.Sprintf(`{"type":"a","args":[%d],"meta":{"tenant_id":"t%d"}}`, n, p), int64(1)
				if n%10 == 9 {
					path, body, jobs = "/ojs/v1/jobs/batch", `{"jobs":[{"type":"a","args":[]},{"type":"a","args":[],"options":{"delay_until":"+PT1S"}}]}`, 2
				}
				if status, _ := post(path, body); status == 201 {
					enqueued.Add(jobs)
				}
				time.Sleep(2 * time.Millisecond)
			}
		})
	}
	for w := range 8 {
		workers.Go(func() {
			for !t.Failed() {
				_, answer := post("/ojs/v1/workers/fetch", fmt.Sprintf(`{"queues":["default"],"count":3,"worker_id":"w%d"}`, w))
				jobs, _ := answer["jobs"].([]any)
				for _, j := range jobs {
					job, _ := j.(map[string]any)
					if status, _ := post("/ojs/v1/workers/ack", fmt.Sprintf(`{"job_id":%q,"lease":%q}`, job["id"], job["lease"])); status == 200 {
						completed.Add(1)
					}
				}
				if len(jobs) == 0 {
					if over.Load() && completed.Load() == enqueued.Load() {
						return
					}
					time.Sleep(5 * time.Millisecond)
				}
			}
		})
	}
	later := with(t, toCome)
	up := func() {
		t.Helper()
		if err := pg.MigrateFrom(t.Context(), later, d.URL, pg.Up, nil); err != nil {
			t.Errorf("up: %v", err)
		}
	}
	up()
	if err := opened.CheckSchema(t.Context()); err != nil {
		t.Errorf("a server of the old release would not start: %v", err)
	}
	if s, _ := status(t, d.URL); s.Current || s.Hash != db.HashOf(later, 90002) {
		t.Errorf("to the old release the schema is %+v", s)
	}
	if err := pg.MigrateFrom(t.Context(), later, d.URL, pg.DownTo(90001), nil); err == nil || !strings.Contains(err.Error(), "cannot be taken back") {
		t.Errorf("down from what cannot be taken back: %v", err)
	}
	if _, err := d.Pool.Exec(t.Context(), "delete from public.ojs_goose_version where version_id = 90002"); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := pg.MigrateFrom(t.Context(), later, d.URL, pg.DownTo(db.Version()), nil); err != nil {
			t.Errorf("down: %v", err)
		}
		if err := pg.MigrateFrom(t.Context(), with(t, map[string]string{"90001_note.sql": toCome["90001_note.sql"]}), d.URL, pg.Up, nil); err != nil {
			t.Errorf("up again: %v", err)
		}
	}
	over.Store(true)
	producers.Wait()
	workers.Wait()
	t.Logf("%d jobs, of which %d were completed; %d requests were answered that they may be repeated", enqueued.Load(), completed.Load(), repeated.Load())
	if enqueued.Load() == 0 {
		t.Error("nothing was enqueued")
	}
	var twice int
	if err := d.Pool.QueryRow(t.Context(), `
		select sum(w.jobs) - (select count(*) from ojs.job j where j.state = 'completed')
		from ojs.journal w where w.to_state = 'completed'`).Scan(&twice); err != nil || twice != 0 {
		t.Errorf("%d jobs were completed twice (%v)", twice, err)
	}
}

type locked struct {
	mu *sync.Mutex
	w  io.Writer
}

func (l locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

// Somebody reads the table all the time, and somebody keeps a transaction open for a while: neither is waited for in a way that would make all others wait.
func TestMigrateWaitsInTurns(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	tx, err := d.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "select from ojs.job"); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- pg.MigrateFrom(t.Context(), with(t, toCome), d.URL, pg.Up, nil) }()
	refusals := func() (n int) {
		t.Helper()
		if err := d.Pool.QueryRow(t.Context(), "select xact_rollback from pg_stat_database where datname = current_database()").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := refusals()
	deadline := time.Now().Add(20 * time.Second)
	for refusals() < before+3 {
		if time.Now().After(deadline) {
			t.Fatal("it does not give way")
		}
		if _, err := d.Service().Exec(t.Context(), "select ojs.enqueue('a')"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
	select {
	case err := <-done:
		t.Fatalf("it ended before the transaction that was in its way: %v", err)
	default:
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
