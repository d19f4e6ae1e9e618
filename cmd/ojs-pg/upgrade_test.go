package main

import (
	"bytes"
	"cmp"
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
	"time"

	"github.com/ojs-pg/ojs-pg/db"
	"github.com/ojs-pg/ojs-pg/internal/dispatch"
	httpapi "github.com/ojs-pg/ojs-pg/internal/http"
	"github.com/ojs-pg/ojs-pg/internal/migrate"
	"github.com/ojs-pg/ojs-pg/internal/notify"
	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/pgtest"
	"github.com/ojs-pg/ojs-pg/internal/sched"
)

// toCome is a release that changes what all programs use: the table of jobs, and the functions that return its columns.
func toCome(t *testing.T, d *pgtest.DB) migrate.Source {
	columns := pgtest.One[string](t, d.Pool, `
		select string_agg('(null::ojs.job).' || quote_ident(a.attname), ', ' order by a.attnum) from pg_attribute a
		where a.attrelid = 'ojs.job'::regclass and a.attnum > 0 and not a.attisdropped`)
	files := map[string]string{"migrations/90001_note.sql": `-- +goose Up
set local role ojs_owner;
alter table ojs.job add column note text default 'as before';
create index note_idx on ojs.journal (at);
reset role;
`}
	for _, change := range [][3]string{
		{"dispatch/fetch.sql", "f.options, f.extra", "f.options, f.extra, null::text"},
		{"dispatch/fetch.sql", "            t.extra\n", "            t.extra, null::text\n"},
		{"enqueue/enqueue_many.sql", "o.options, o.extra", "o.options, o.extra, null::text"},
		{"enqueue/enqueue_rows.sql", "k.options, k.extra", "k.options, k.extra, null::text"},
		{"settle/settle.sql", "(null::ojs.job).*", columns},
		{"jobs/job.sql", "", "comment on column ojs.job.note is 'Of a later release.';\n"},
	} {
		file := "code/" + change[0]
		text := cmp.Or(files[file], pgtest.CodeFile(t, change[0]))
		if files[file] = strings.Replace(text, change[1], change[2], 1); files[file] == text {
			t.Fatalf("%s does not say %q", file, change[1])
		}
	}
	return pgtest.Later(t, files)
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
	listener := notify.New(opened, log)
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

// changeSchema upgrades to a release to come, and four times to one that differs from it in a function.
func (u *upgraded) changeSchema(opened *pg.DB) {
	t := u.t
	later := toCome(t, u.db)
	if err := migrate.RunFrom(t.Context(), later, u.db.URL, migrate.Up, nil); err != nil {
		t.Errorf("up: %v", err)
	}
	if err := migrate.CheckSchema(t.Context(), opened.Pool()); err != nil {
		t.Errorf("a server of the old release would not start: %v", err)
	}
	if s, err := migrate.Status(t.Context(), u.db.URL); err != nil || s.Current || s.Hash != db.HashOf(later.Migrations, 90001) ||
		s.Release != pgtest.LaterRelease {
		t.Errorf("to the old release the schema is %+v (%v)", s, err)
	}
	err := migrate.Run(t.Context(), u.db.URL, migrate.Up, nil)
	if !errors.Is(err, migrate.ErrSchema) || !strings.Contains(err.Error(), "later one") {
		t.Errorf("up with the old release: %v", err)
	}
	for n := range 4 {
		changed := pgtest.CodeFile(t, "settle/ack.sql") + strings.Repeat("\n-- changed", n+1)
		source := later
		source.Code = overlaid{later.Code, "settle/ack.sql", changed}
		if err := migrate.RunFrom(t.Context(), source, u.db.URL, migrate.Up, nil); err != nil {
			t.Errorf("up again: %v", err)
		}
	}
}

// overlaid is files of which one has another text.
type overlaid struct {
	fs.FS
	name, text string
}

// ReadFile implements fs.ReadFileFS.
func (o overlaid) ReadFile(name string) ([]byte, error) {
	if name == o.name {
		return []byte(o.text), nil
	}
	return fs.ReadFile(o.FS, name)
}

// Eight producers and eight workers go on while the schema changes under the server. No request fails but in a way that says
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
