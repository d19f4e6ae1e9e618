package jobrow_test

import (
	"errors"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojs-pg/ojs-pg/internal/jobrow"
	"github.com/ojs-pg/ojs-pg/internal/pgtest"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// unread are the columns of ojs.job that servers do not read: nobody is told the number of a pool,
// nor what a tenant is charged.
var unread = []string{"pool", "charged"}

func TestColumnsOfAJobGoIntoTheFieldsOfTheirNames(t *testing.T) {
	t.Parallel()
	var j sqlcgen.OjsJob
	job, fields := reflect.ValueOf(&j).Elem(), jobrow.Fields(&j)
	if job.NumField() != len(fields)+len(unread) {
		t.Errorf("a job has %d fields, and %d columns are read", job.NumField(), len(fields))
	}
	for i, column := range strings.Split(jobrow.Columns, ", ") {
		for n := range job.NumField() {
			field := job.Type().Field(n)
			if same := job.Field(n).Addr().Interface() == fields[i]; same != (field.Tag.Get("json") == column) {
				t.Errorf("column %s, field %s: the column goes into the field: %t", column, field.Name, same)
			}
		}
	}
}

// Answers lack a column of ojs.job that servers do not read, and nothing else would say so.
func TestServersReadTheColumnsOfTheTable(t *testing.T) {
	t.Parallel()
	rows, err := pgtest.New(t).Pool.Query(t.Context(), `
		select a.attname || ' ' || case when a.atttypid = 'ojs.job_state'::regtype then 0 else a.atttypid end from pg_attribute a
		where a.attrelid = 'ojs.job'::regclass and a.attnum > 0 and not a.attisdropped and a.attname <> all ($1)`, unread)
	if err != nil {
		t.Fatal(err)
	}
	table, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	read := jobrow.Types()
	for _, column := range table {
		if !slices.Contains(read, column) {
			t.Errorf("ojs.job has a column that servers do not read: %s", column)
		}
	}
	for _, column := range read {
		if !slices.Contains(table, column) {
			t.Errorf("servers read a column that ojs.job does not have: %s", column)
		}
	}
}

// someJobs have a value, and no value, in every column.
func someJobs(t testing.TB, d *pgtest.DB) {
	t.Helper()
	if _, err := d.Pool.Exec(t.Context(), `
		select ojs.enqueue('plain', p_queue => 'q');
		select ojs.enqueue('full', '[1, "two", {"three": 3.00}]', p_queue => 'q', p_priority => 7, p_tenant => 'acme',
			p_meta => '{"trace": "x"}', p_retry => '{"max_attempts": 5}', p_timeout_ms => 60000, p_visibility_timeout_ms => 45000,
			p_tags => array['a', 'b c'], p_options => '{"o":1}', p_extra => '{"x_e": [1,2]}', p_expires_at => now() + interval '1 day');
		select ojs.nack(f.id, '{"message": "m"}', p_requeue => true) from ojs.fetch('{q}', 2, 'w') f;
		select from ojs.fetch('{q}', 1, 'worker');
		update ojs.job set result = '{"r": 1}', finished_at = now(), retry_at = now(), scheduled_at = now() where type =
			'full'`); err != nil {
		t.Fatal(err)
	}
}

// utc sets a time, which pgx gives in the zone of this machine.
func utc(field any) {
	switch at := field.(type) {
	case *time.Time:
		*at = at.UTC()
	case **time.Time:
		if *at != nil {
			**at = (*at).UTC()
		}
	}
}

func readJobs(t *testing.T, d *pgtest.DB, columns string, mode pgx.QueryExecMode) (jobs []sqlcgen.OjsJob) {
	t.Helper()
	rows, err := d.Pool.Query(t.Context(), "select 7 as n, "+columns+" from ojs.job order by type", mode)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	reader := jobrow.New(rows, 1)
	for rows.Next() {
		jobs = append(jobs, sqlcgen.OjsJob{})
		n, err := reader.Int(0)
		if err = errors.Join(err, reader.Read(&jobs[len(jobs)-1])); err != nil || n != 7 {
			t.Fatal(n, err)
		}
	}
	if rows.Err() != nil {
		t.Fatal(rows.Err())
	}
	return jobs
}

func TestJobsReadByHandAreThoseThatPgxReads(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	someJobs(t, d)
	rows, err := d.Pool.Query(t.Context(), "select "+jobrow.Columns+" from ojs.job order by type")
	if err != nil {
		t.Fatal(err)
	}
	want, err := pgx.CollectRows(rows,
		func(row pgx.CollectableRow) (j sqlcgen.OjsJob, err error) { return j, row.Scan(jobrow.Fields(&j)...) })
	if err != nil || len(want) != 2 {
		t.Fatal(len(want), err)
	}
	for i := range want {
		for _, field := range jobrow.Fields(&want[i]) {
			utc(field)
		}
	}
	for name, c := range map[string]struct {
		columns string
		mode    pgx.QueryExecMode
	}{
		"binary":         {jobrow.Columns, pgx.QueryExecModeCacheStatement},
		"text":           {jobrow.Columns, pgx.QueryExecModeSimpleProtocol},
		"a wider column": {strings.Replace(jobrow.Columns, "attempt,", "attempt::bigint,", 1), pgx.QueryExecModeCacheStatement},
	} {
		got := readJobs(t, d, c.columns, c.mode)
		for i := range got {
			for _, field := range jobrow.Fields(&got[i]) {
				utc(field)
			}
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s:\n%+v\nwant\n%+v", name, got, want)
		}
	}
}

// In the formats in which a server's pool gets them, all columns but tags are decoded by hand and
// not by pgx.
func TestJobsOfAServerAreDecodedByHand(t *testing.T) {
	t.Parallel()
	rows, err := pgtest.New(t).Open().Pool().Query(t.Context(), "select "+jobrow.Columns+" from ojs.fetch(array['q'])")
	if err != nil {
		t.Fatal(err)
	}
	rows.Close()
	for _, field := range rows.FieldDescriptions() {
		if jobrow.ByHand(field) != (field.Name != "tags") {
			t.Errorf("%s has the type %d in format %d: by hand: %t", field.Name, field.DataTypeOID, field.Format, jobrow.ByHand(field))
		}
	}
}

func TestAColumnThatNoJobHasIsAnError(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	someJobs(t, d)
	rows, err := d.Pool.Query(t.Context(), "select state, attempt, 1 as pool from ojs.job")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	if !rows.Next() {
		t.Fatal(rows.Err())
	}
	var j sqlcgen.OjsJob
	if err := jobrow.New(rows, 0).Read(&j); err == nil || !strings.Contains(err.Error(), "pool") {
		t.Error(err)
	}
}

// replayed are rows in memory, so that a benchmark measures their decoding alone.
type replayed struct {
	pgx.Rows
	conn   *pgx.Conn
	fields []pgconn.FieldDescription
	raw    [][][]byte
	at     int
	plans  []pgtype.ScanPlan
	types  []reflect.Type
}

func (r *replayed) Next() bool                                   { r.at++; return r.at < len(r.raw) }
func (r *replayed) RawValues() [][]byte                          { return r.raw[r.at] }
func (r *replayed) FieldDescriptions() []pgconn.FieldDescription { return r.fields }
func (r *replayed) Conn() *pgx.Conn                              { return r.conn }

// Scan does what pgx does: it plans once for each column.
func (r *replayed) Scan(into ...any) error {
	if r.plans == nil {
		for i, dst := range into {
			r.plans = append(r.plans, r.conn.TypeMap().PlanScan(r.fields[i].DataTypeOID, r.fields[i].Format, dst))
			r.types = append(r.types, reflect.TypeOf(dst))
		}
	}
	for i, dst := range into {
		if reflect.TypeOf(dst) != r.types[i] {
			return errors.New("another type")
		}
		if err := r.plans[i].Scan(r.raw[r.at][i], dst); err != nil {
			return err
		}
	}
	return nil
}

// BenchmarkReadJobs decodes a thousand jobs as a worker gets them, by hand and by pgx.
func BenchmarkReadJobs(b *testing.B) {
	d := pgtest.New(b)
	if _, err := d.Pool.Exec(b.Context(), `
		select ojs.enqueue('email.send', format('[{"to": "someone%s@example.com", "body": "%s"}]', i, repeat('x', 50))::json, p_tenant =>
			'acme')
		from generate_series(1, 1000) i`); err != nil {
		b.Fatal(err)
	}
	conn, err := pgx.Connect(b.Context(), d.URL)
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close(b.Context())
	rows, err := conn.Query(b.Context(), "select "+jobrow.Columns+" from ojs.fetch('{default}', 1000, 'worker')")
	if err != nil {
		b.Fatal(err)
	}
	kept := &replayed{conn: conn}
	for rows.Next() {
		var row [][]byte
		for _, value := range rows.RawValues() {
			if value != nil {
				value = append([]byte{}, value...)
			}
			row = append(row, value)
		}
		kept.raw = append(kept.raw, row)
	}
	if kept.fields = append(kept.fields, rows.FieldDescriptions()...); rows.Err() != nil || len(kept.raw) != 1000 {
		b.Fatal(len(kept.raw), rows.Err())
	}
	b.Run("by hand", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			kept.at = -1
			reader, jobs := jobrow.New(kept, 0), make([]sqlcgen.OjsJob, 1000)
			for i := 0; kept.Next(); i++ {
				if err := reader.Read(&jobs[i]); err != nil {
					b.Fatal(err)
				}
			}
		}
	})
	b.Run("by pgx", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			kept.at = -1
			jobs := make([]sqlcgen.OjsJob, 1000)
			for i := 0; kept.Next(); i++ {
				if err := kept.Scan(jobrow.Fields(&jobs[i])...); err != nil {
					b.Fatal(err)
				}
			}
		}
	})
}
