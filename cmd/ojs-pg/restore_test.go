package main

import (
	"context"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
	"github.com/ojs-pg/ojs-pg/internal/setup"
)

// possessions lists owners, policies and grants, by another query than the program's own.
const possessions = `
	with acl(what, owner, acl) as (
		select concat_ws(' ', 'relation', c.oid::regclass, c.relrowsecurity, c.relforcerowsecurity), c.relowner, c.relacl
			from pg_class c where c.relnamespace = 'ojs'::regnamespace
		union all select concat_ws(' ', 'column', a.attrelid::regclass, a.attname), c.relowner, a.attacl
			from pg_attribute a join pg_class c on c.oid = a.attrelid where c.relnamespace = 'ojs'::regnamespace and a.attacl is not null
		union all select 'function ' || p.oid::regprocedure, p.proowner, coalesce(p.proacl, acldefault('f', p.proowner))
			from pg_proc p where p.pronamespace = 'ojs'::regnamespace
		union all select 'type ' || y.oid::regtype, y.typowner, y.typacl from pg_type y where y.typnamespace = 'ojs'::regnamespace
		union all select 'schema', n.nspowner, n.nspacl from pg_namespace n where n.nspname = 'ojs'
	)
	select x from (
		select concat_ws(' ', o.what, 'of', pg_get_userbyid(o.owner), (
			select string_agg(g, ', ' order by g collate "C") from aclexplode(o.acl) a cross join concat_ws(' ', a.privilege_type,
				case a.grantee when 0 then 'public' else pg_get_userbyid(a.grantee) end, 'by', pg_get_userbyid(a.grantor)) g
			where a.grantee <> o.owner)) from acl o
		union all select concat_ws(' ', 'policy', p) from pg_policies p where p.schemaname = 'ojs'
		union all select concat_ws(' ', 'default', pg_get_userbyid(d.defaclrole), d.defaclobjtype, d.defaclacl) from pg_default_acl d
	) y(x)
	order by x collate "C"`

// A restore may leave out roles, owners or grants. No server then serves half of the schema, and migrate
// up repairs it: owners, policies and grants are the same as before, waiting jobs run once, and completed
// jobs do not run again.
func TestADumpIsMadeWhole(t *testing.T) {
	t.Parallel()
	source := newBackup(t, nil, true)
	bare := []string{"--no-owner", "--no-acl"}
	for name, c := range map[string]struct {
		fresh              bool // a cluster that has never known our roles
		owner              bool // not a superuser restores, but the owner of the database
		dumping, restoring []string
		lacks              string
	}{
		"the database, in the same cluster": {restoring: []string{"--exit-on-error"}},
		"the schema, in the same cluster": {
			dumping: []string{"-n", "ojs"}, restoring: []string{"--exit-on-error"}, lacks: "(1 default privileges)",
		},
		"without owners, in the same cluster":                 {restoring: []string{"--exit-on-error", "--no-owner"}, lacks: " owners"},
		"without grants, in the same cluster":                 {restoring: []string{"--exit-on-error", "--no-acl"}, lacks: " revocations"},
		"without owners and grants, in the same cluster":      {restoring: append(bare, "--exit-on-error"), lacks: " grants"},
		"the database, where there are no roles":              {fresh: true, lacks: "6 groups"},
		"the schema, where there are no roles":                {fresh: true, dumping: []string{"-n", "ojs"}, lacks: "6 groups"},
		"without owners and grants, where there are no roles": {fresh: true, restoring: bare, lacks: "6 groups"},
		"by the owner of the database":                        {fresh: true, owner: true, restoring: bare, lacks: "6 groups"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := &backup{T: t, from: source.from, bin: source.bin}
			address, service := b.place(strings.Map(letters, name), c.fresh, c.owner)
			b.transfer(address, c.dumping, c.restoring)
			b.putsRight(address, service, c.lacks)
			if c.fresh {
				if err := setup.CreateServerRole(t.Context(), address, "ojs_server", "secret"); err != nil {
					t.Fatal(err)
				}
			}
			testRestored(b, connected(t, address), connected(t, service))
		})
	}
}

// place makes an empty database, and returns the URLs of its owner and of a server.
func (b *backup) place(name string, fresh, owner bool) (address, service string) {
	b.Helper()
	if !fresh {
		pgtest.Exec(b.T, b.from.Pool, "create database "+name+" encoding 'UTF8' template template0")
		b.Cleanup(func() {
			if _, err := b.from.Pool.Exec(context.Background(), "drop database "+name+" with (force)"); err != nil {
				b.Error(err)
			}
		})
		return withPath(b.T, b.from.URL, name), withPath(b.T, b.from.ServiceURL, name)
	}
	b.to = pgtest.NewEmpty(b.T, nil)
	as := func(role string) string {
		u, err := url.Parse(b.to.URL)
		if err != nil {
			b.Fatal(err)
		}
		u.User = url.UserPassword(role, "secret")
		return u.String()
	}
	if owner {
		b.to.Exec("create role deployer login createrole password 'secret'; alter database ojs owner to deployer")
		return as("deployer"), as("ojs_server")
	}
	return b.to.URL, as("ojs_server")
}

// putsRight checks what the program says that a restore lacks, and does what it recommends.
func (b *backup) putsRight(address, service, lacks string) {
	b.Helper()
	const leftOut = "a restore has left out what belongs to the schema"
	if lacks != "" {
		// ojs.doctor says it in psql, too, if it is there.
		const says = `select finding from ojs.doctor()
			where severity = 'error' and topic = 'roles' and runbook = 'backup-and-restore.md'`
		if said := pgtest.List[string](b.T, connected(b.T, address), says); len(said) != 1 || !strings.HasPrefix(said[0], "A restore") {
			b.Errorf("ojs.doctor() says %q", said)
		}
		for _, c := range []struct {
			args  []string
			ended int
			want  string
		}{
			{[]string{"serve", "--listen", "127.0.0.1:0"}, 1, "ojs-pg migrate up"},
			{[]string{"doctor"}, foundErrors, "error: roles: "},
			{[]string{"doctor"}, foundErrors, "docs/runbooks/backup-and-restore.md"},
			{[]string{"migrate", "status"}, 0, lacks},
		} {
			text, ended := b.does(address, c.args...)
			if ended != c.ended || !strings.Contains(text, leftOut) || !strings.Contains(text, c.want) {
				b.Errorf("%q ends with %d: %s", c.args, ended, text)
			}
		}
		// The role of the server exists, but may not use the schema.
		for command, want := range map[string]int{"serve": 1, "doctor": foundErrors} {
			if text, ended := b.does(service, command); b.to == nil && (ended != want || !strings.Contains(text, leftOut)) {
				b.Errorf("as a server %s ends with %d: %s", command, ended, text)
			}
		}
	}
	text, ended := b.does(address, "migrate", "up")
	if again := strings.HasPrefix(text, "made again "); ended != 0 || again != (lacks != "") || !strings.Contains(text, "nothing to do") {
		b.Errorf("migrate up ends with %d: %s", ended, text)
	}
	if text, ended := b.does(address, "migrate", "up"); ended != 0 || !strings.HasPrefix(text, "nothing to do") {
		b.Errorf("migrate up again ends with %d: %s", ended, text)
	}
}

// letters keeps the letters of a text, to make a name for a database.
func letters(r rune) rune {
	if r < 'a' || r > 'z' {
		return '_'
	}
	return r
}

func possessionsOf(t *testing.T, db *pgxpool.Pool) []string {
	t.Helper()
	conn, err := db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	pgtest.Exec(t, conn, "set search_path = ''") // names are told in full
	return pgtest.List[string](t, conn, possessions)
}

// testRestored compares the restored jobs with those that were dumped, and completes them as the role of
// a server.
func testRestored(b *backup, db, service *pgxpool.Pool) {
	want, got := possessionsOf(b.T, b.from.Pool), possessionsOf(b.T, db)
	for _, line := range want {
		if !slices.Contains(got, line) {
			b.Errorf("lost: %s", line)
		}
	}
	for _, line := range got {
		if !slices.Contains(want, line) {
			b.Errorf("new: %s", line)
		}
	}
	done := pgtest.List[string](b.T, service, "select id::text from ojs.job where state = 'completed'")
	pgtest.Exec(b.T, service, "select ojs.tick()")
	handedOut := pgtest.List[string](b.T, service, "select id::text from ojs.fetch('{mail}', 100)")
	slices.Sort(handedOut)
	if len(handedOut) != 30 || len(slices.Compact(handedOut)) != 30 {
		b.Errorf("%d jobs are handed out, want 30 different ones", len(handedOut))
	}
	if slices.ContainsFunc(done, func(id string) bool { return slices.Contains(handedOut, id) }) || len(done) != 6 {
		b.Errorf("of %d jobs that were done, some are handed out again", len(done))
	}
	if n := pgtest.One[int](b.T, service,
		"select count(*)::int from (select ojs.ack(id, lease) from ojs.job where state = 'active') a"); n != 35 {
		b.Errorf("%d jobs are acknowledged", n)
	}
	if n := len(pgtest.List[string](b.T, service, "select id::text from ojs.fetch('{mail}', 100)")); n != 0 {
		b.Errorf("%d jobs are handed out twice", n)
	}
}
