//go:build unix

package bench

import (
	"context"
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// loadChunk is the number of jobs per statement while loading.
	loadChunk = 50_000
	// payloads is the number of different payloads: so many that the database compresses them no better
	// than real ones.
	payloads = 64
)

// loader puts a backlog into a table with few large statements, as a superuser. The same triggers fire
// as for a producer.
type loader struct {
	conn    *pgx.Conn
	table   string
	payload []string
}

// loader returns a loader for ojs.job, or for the baseline's table.
func (d *database) loader(ctx context.Context, table string, argsBytes int) (*loader, error) {
	conn, err := connectAs(ctx, d.admin, "")
	if err != nil {
		return nil, err
	}
	return &loader{conn: conn, table: table, payload: makeArgs(argsBytes)}, nil
}

// sql returns a statement that adds jobs of the tenants $1, $2 jobs of each. columns and values are
// columns in addition to those that every job has.
func (l *loader) sql(columns, values string) string {
	return `
		insert into ` + l.table + ` (tenant_id, type, queue, args` + columns + `)
		select t.tenant, 'bench.job', $4, ($3::text[])[1 + g.i % cardinality($3)]::json` + values + `
		from unnest($1::text[], $2::int[]) t(tenant, jobs) cross join lateral generate_series(1, t.jobs) g(i)
		order by g.i::float8 / t.jobs, t.tenant`
}

// loadAt adds jobs with one statement. Their ids are those of jobs made at an instant.
func (l *loader) loadAt(ctx context.Context, tenants []string, jobs []int64, at time.Time) error {
	sql := l.sql(", id", ", (left(ojs._id_at($5)::text, 14) || '7' || substr(gen_random_uuid()::text, 16))::uuid")
	if _, err := l.conn.Exec(ctx, sql, tenants, jobs, l.payload, queue, at); err != nil {
		return fmt.Errorf("load jobs of the past: %w", err)
	}
	return nil
}

func (l *loader) close() { _ = l.conn.Close(context.Background()) }

// load adds jobs of tenants, mixed evenly, and calls done with the number of jobs after each statement.
func (l *loader) load(ctx context.Context, tenants []string, jobs []int64, done func(int64)) error {
	var total int64
	for _, n := range jobs {
		total += n
	}
	chunks := (total + loadChunk - 1) / loadChunk
	loaded := int64(0)
	for c := range chunks {
		var names []string
		var counts []int32
		for i, n := range jobs {
			// The share of this chunk, if the jobs are divided evenly.
			if part := n*(c+1)/chunks - n*c/chunks; part > 0 {
				names, counts = append(names, tenants[i]), append(counts, int32(part))
				loaded += part
			}
		}
		if _, err := l.conn.Exec(ctx, l.sql("", ""), names, counts, l.payload, queue); err != nil {
			return fmt.Errorf("load jobs: %w", err)
		}
		if done != nil {
			done(loaded)
		}
	}
	return nil
}

// loadWhole adds jobs of many tenants, all jobs of a tenant with one statement, so that the journal has
// as few rows as possible.
func (l *loader) loadWhole(ctx context.Context, tenants []string, jobs []int64, done func(int64)) error {
	loaded := int64(0)
	for first := 0; first < len(tenants); {
		end, chunk := first, int64(0)
		for ; end < len(tenants) && (end == first || chunk+jobs[end] <= loadChunk); end++ {
			chunk += jobs[end]
		}
		if err := l.load(ctx, tenants[first:end], jobs[first:end], nil); err != nil {
			return err
		}
		loaded += chunk
		done(loaded)
		first = end
	}
	return nil
}

// makeArgs returns JSON arrays of a size in bytes, filled with text that does not compress well.
func makeArgs(size int) []string {
	random := rand.New(rand.NewPCG(1, uint64(size)))
	out := make([]string, payloads)
	raw := make([]byte, size)
	for i := range out {
		for j := range raw {
			raw[j] = byte(random.Uint32())
		}
		out[i] = `["` + base64.RawURLEncoding.EncodeToString(raw)[:max(0, size-4)] + `"]`
	}
	return out
}
