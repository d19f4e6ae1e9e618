package migrate_test

import (
	"compress/gzip"
	"context"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/ojs-pg/ojs-pg/db"
	"github.com/ojs-pg/ojs-pg/internal/migrate"
	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// A dump of each release, restored into an empty database, becomes by migrate up what an empty
// database becomes, to the last comment and grant, and its jobs go on.
func TestDumpsOfReleasesAreUpgraded(t *testing.T) {
	t.Parallel()
	dumps, err := filepath.Glob("../../db/releases/*.sql.gz")
	if err != nil || len(dumps) == 0 {
		t.Fatalf("%d dumps of releases: %v", len(dumps), err)
	}
	server := pgtest.NewPrivate(t, nil)
	want := schemaOf(t, server.URL)
	if len(want) < 2000 {
		t.Fatalf("only %d lines tell what the schema is", len(want))
	}
	for _, file := range dumps {
		release := strings.TrimSuffix(filepath.Base(file), ".sql.gz")
		t.Run(release, func(t *testing.T) { testDumpOfARelease(t, server, release, file, want) })
	}
}

func testDumpOfARelease(t *testing.T, server *pgtest.Private, release, file string, want []string) {
	server.Exec(`create database "` + release + `" encoding 'UTF8' template template0`)
	at, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	at.Path = "/" + release
	address := at.String()
	conn := restore(t, address, file)
	jobs := func() string {
		return pgtest.One[string](t, conn, `
			select string_agg(concat_ws(' ', state, jobs), ', ' order by state::text)
			from (select j.state, count(*) as jobs from ojs.job j group by j.state) s`)
	}
	const asEver = "active 2, available 65, cancelled 1, completed 10, discarded 3, pending 2, retryable 4, scheduled 7"
	if got := jobs(); got != asEver {
		t.Errorf("the dump has other jobs: %s", got)
	}
	promised := pgtest.List[string](t, conn, promises)
	if len(promised) < 500 {
		t.Fatalf("of the release only %d functions and columns are promised", len(promised))
	}
	if err := migrate.Run(t.Context(), address, migrate.Up, nil); err != nil {
		t.Fatal(err)
	}
	kept := pgtest.List[string](t, conn, promises)
	for _, line := range promised {
		// A function may have got further parameters, which the new release has to give defaults.
		before, result, function := strings.Cut(line, ") returns ")
		if !slices.ContainsFunc(kept, func(now string) bool {
			return now == line || function && strings.HasPrefix(now, before+", ") && strings.HasSuffix(now, ") returns "+result)
		}) {
			t.Errorf("docs/reference/stability.md promises, and the upgrade takes away: %s", line)
		}
	}
	if got := jobs(); got != asEver {
		t.Errorf("after the upgrade there are other jobs: %s", got)
	}
	if got := pgtest.One[string](t, conn, "select release from ojs.schema_release"); got != db.Release {
		t.Errorf("after the upgrade the release is %s", got)
	}
	got := schemaOf(t, address)
	for _, line := range got {
		if _, found := slices.BinarySearch(want, line); !found {
			t.Errorf("only after the upgrade: %.500s", line)
		}
	}
	for _, line := range want {
		if _, found := slices.BinarySearch(got, line); !found {
			t.Errorf("not after the upgrade: %.500s", line)
		}
	}
	pgtest.Exec(t, conn, "select ojs.tick() from generate_series(1, 3)")
	// The limits of the release hold. The clock may have taken back jobs of a worker who is silent
	// since the dump.
	inHand := pgtest.One[int](t, conn, "select count(*)::int from ojs.job j where j.state = 'active'")
	pgtest.Exec(t, conn, "create temp table got as select f.id, f.lease, f.tenant_id from ojs.fetch('{mail}', 1000) f")
	if n := pgtest.One[int](t, conn, "select count(*)::int from got"); n != 50-inHand {
		t.Errorf("%d jobs were handed out, beside %d that were in hand, where 50 may be", n, inHand)
	}
	for range 3 {
		pgtest.Exec(t, conn, "select ojs.ack(g.id, g.lease) from got g")
		pgtest.Exec(t, conn, "truncate got")
		pgtest.Exec(t, conn, "insert into got select f.id, f.lease, f.tenant_id from ojs.fetch('{mail}', 1000) f")
	}
	// Each end is counted, those of the clock, too.
	pgtest.Exec(t, conn, "select ojs.enqueue('more', p_queue => 'mail', p_tenant => 'acme') from generate_series(1, 30)")
	if n := pgtest.One[int](t, conn, "select count(*)::int from ojs.fetch('{mail}', 1000)"); n != 20 {
		t.Errorf("%d jobs of a tenant were handed out, where 20 may be", n)
	}
	const open = "select count(*)::int from ojs.job j where j.type in ('waits', 'once') and j.state <> 'completed'"
	if n := pgtest.One[int](t, conn, open); n != 0 {
		t.Errorf("%d jobs that waited did not complete", n)
	}
}

// promises are the functions, with their parameters and results, and the columns of views, that
// users may build on (docs/reference/stability.md).
const promises = `
select format('%s(%s) returns %s', p.proname, pg_get_function_arguments(p.oid), pg_get_function_result(p.oid)) from pg_proc p
where p.pronamespace = 'ojs'::regnamespace and p.proname not like '\_%'
union all
select format('%s.%s %s', c.relname, a.attname, format_type(a.atttypid, a.atttypmod)) from pg_class c
join pg_attribute a on a.attrelid = c.oid and a.attnum > 0
where c.relnamespace = 'ojs'::regnamespace and c.relkind = 'v' and c.relname not like '\_%'
`

// restore executes a dump. It is for psql, which knows two commands that no server does.
func restore(t *testing.T, address, file string) *pgx.Conn {
	t.Helper()
	packed, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer packed.Close()
	unpacked, err := gzip.NewReader(packed)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(unpacked)
	if err != nil {
		t.Fatal(err)
	}
	sql := regexp.MustCompile(`(?m)^\\(un)?restrict .*$`).ReplaceAllString(string(text), "")
	conn, err := pgx.Connect(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	if _, err := conn.PgConn().Exec(t.Context(), sql).ReadAll(); err != nil {
		t.Fatalf("restore: %s", pgtest.Explain(err))
	}
	pgtest.Exec(t, conn, "reset all")
	return conn
}

// schemaOf tells all that schema ojs is, sorted, a line for each thing: what pg_dump -s writes.
// Partitions are left out, which come with time.
func schemaOf(t *testing.T, address string) []string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	lines := pgtest.List[string](t, conn, schemaLines)
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	// What PostgreSQL prints of a view is not always what it prints of a view made from that, as a
	// restored one is.
	pgtest.Exec(t, tx, `
		do $$
		declare v_view record;
		begin
			for v_view in select c.oid::regclass as name, pg_get_viewdef(c.oid) as text from pg_class c
				where c.relnamespace = 'ojs'::regnamespace and c.relkind = 'v'
			loop
				execute format('create or replace view %s as %s', v_view.name, v_view.text);
			end loop;
		end $$`)
	lines = append(lines, pgtest.List[string](t, tx, `
		select format('view | %s | %s', c.oid::regclass, pg_get_viewdef(c.oid)) from pg_class c
		where c.relnamespace = 'ojs'::regnamespace and c.relkind = 'v'`)...)
	slices.Sort(lines)
	return lines
}

const schemaLines = `
with ours as (
	select c.* from pg_class c where c.relnamespace = 'ojs'::regnamespace and not c.relispartition
), functions as (
	select p.* from pg_proc p where p.pronamespace = 'ojs'::regnamespace
)
select concat_ws(' | ', 'schema', n.nspname, n.nspowner::regrole, n.nspacl, obj_description(n.oid, 'pg_namespace'))
from pg_namespace n where n.nspname = 'ojs'
union all
select concat_ws(' | ', 'relation', c.oid::regclass, c.relkind, c.relpersistence, c.relowner::regrole, c.relacl, c.reloptions,
	c.relrowsecurity, c.relforcerowsecurity, c.relreplident, pg_get_partkeydef(c.oid),
	obj_description(c.oid, 'pg_class'))
from ours c where c.relkind <> 'i'
union all
select concat_ws(' | ', 'column', c.oid::regclass, a.attnum - (select count(*) from pg_attribute g
		where g.attrelid = c.oid and g.attnum between 1 and a.attnum and g.attisdropped),
	a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity, a.attgenerated, a.attstorage,
	a.attcompression, nullif(a.attstattarget, -1), a.attoptions, a.attacl, a.attcollation::regcollation, pg_get_expr(d.adbin, d.adrelid),
	col_description(c.oid, a.attnum))
from ours c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
left join pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum
where c.relkind <> 'i'
union all
select concat_ws(' | ', 'index', pg_get_indexdef(i.indexrelid), i.indisvalid, i.indisreplident, i.indisclustered, x.reloptions,
	obj_description(x.oid, 'pg_class'))
from ours c join pg_index i on i.indrelid = c.oid join pg_class x on x.oid = i.indexrelid
union all
select concat_ws(' | ', 'constraint', n.conname, coalesce(nullif(n.conrelid, 0)::regclass::text, n.contypid::regtype::text),
	pg_get_constraintdef(n.oid), n.convalidated, obj_description(n.oid, 'pg_constraint'))
from pg_constraint n where n.connamespace = 'ojs'::regnamespace
	and (n.conrelid = 0 or n.conrelid in (select c.oid from ours c)) and n.contype <> 'n'
union all
select concat_ws(' | ', 'trigger', pg_get_triggerdef(g.oid), g.tgenabled, obj_description(g.oid, 'pg_trigger'))
from pg_trigger g where g.tgrelid in (select c.oid from ours c) and not g.tgisinternal
union all
select concat_ws(' | ', 'rule', pg_get_ruledef(r.oid)) from pg_rewrite r
where r.ev_class in (select c.oid from ours c) and r.rulename <> '_RETURN'
union all
select concat_ws(' | ', 'policy', p.polrelid::regclass, p.polname, p.polcmd, p.polpermissive,
	array(select r::regrole::text from unnest(p.polroles) r order by 1),
	pg_get_expr(p.polqual, p.polrelid), pg_get_expr(p.polwithcheck, p.polrelid))
from pg_policy p where p.polrelid in (select c.oid from ours c)
union all
select concat_ws(' | ', 'sequence', s.seqrelid::regclass, s.seqtypid::regtype, s.seqstart, s.seqincrement, s.seqmax, s.seqmin, s.seqcache,
	s.seqcycle)
from pg_sequence s where s.seqrelid in (select c.oid from ours c)
union all
select concat_ws(' | ', 'statistics', pg_get_statisticsobjdef(s.oid), s.stxowner::regrole)
from pg_statistic_ext s where s.stxnamespace = 'ojs'::regnamespace
union all
select concat_ws(' | ', 'function', f.oid::regprocedure, f.prokind, f.proowner::regrole, f.proacl,
	case when f.prokind <> 'a' then pg_get_functiondef(f.oid) end, obj_description(f.oid, 'pg_proc'))
from functions f
union all
select concat_ws(' | ', 'aggregate', f.oid::regprocedure, g.aggtransfn, g.aggfinalfn, g.aggtranstype::regtype, g.agginitval)
from functions f join pg_aggregate g on g.aggfnoid = f.oid
union all
select concat_ws(' | ', 'type', y.oid::regtype, y.typtype, y.typowner::regrole, y.typacl, y.typdefault,
	case when y.typtype = 'd' then format_type(y.typbasetype, y.typtypmod) end,
	(select string_agg(e.enumlabel, ',' order by e.enumsortorder) from pg_enum e where e.enumtypid = y.oid),
	obj_description(y.oid, 'pg_type'))
from pg_type y where y.typnamespace = 'ojs'::regnamespace and y.typtype in ('c', 'd', 'e', 'r')
	and (y.typrelid = 0 or y.typrelid in (select c.oid from ours c))
union all
select concat_ws(' | ', 'cast', k.castsource::regtype, k.casttarget::regtype, k.castfunc::regprocedure, k.castcontext)
from pg_cast k where k.castfunc in (select f.oid from functions f)
union all
select concat_ws(' | ', 'operator', o.oid::regoperator, o.oprcode) from pg_operator o where o.oprnamespace = 'ojs'::regnamespace
union all
select concat_ws(' | ', 'default privileges', d.defaclrole::regrole, d.defaclobjtype, d.defaclacl)
from pg_default_acl d where d.defaclnamespace = 'ojs'::regnamespace
union all
select concat_ws(' | ', 'event trigger', e.evtname, e.evtevent, e.evtfoid::regprocedure, e.evtenabled, e.evttags, e.evtowner::regrole)
from pg_event_trigger e
union all
select concat_ws(' | ', 'extension', x.extname) from pg_extension x
union all
select concat_ws(' | ', 'first row', p.*::text) from ojs.problem p
`
