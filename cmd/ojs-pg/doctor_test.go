package main

import (
	"bytes"
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// The command says what ojs.doctor says, and its status how bad it is.
func TestDoctor(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	// The server under tests does without what costs time; a doctor rightly minds.
	doctor := func(want int, args ...string) string {
		t.Helper()
		var stdout, stderr bytes.Buffer
		args = append([]string{"ojs-pg", "doctor", "--database-url", d.OperatorURL()}, args...)
		if got := run(args, &stdout, &stderr); got != want {
			t.Errorf("%q ends with %d, want %d:\n%s%s", args, got, want, &stdout, &stderr)
		}
		if want != 2 && stderr.Len() > 0 {
			t.Errorf("%q complains: %s", args, &stderr)
		}
		return stdout.String()
	}
	const sick = "error: clock: No server is on duty"
	if text := doctor(foundErrors); !strings.Contains(text, sick) || !strings.Contains(text, "\n    docs/runbooks/lost-server.md\n") {
		t.Errorf("without a server it says\n%s", text)
	}
	var rows []sqlcgen.DoctorRow
	if err := json.Unmarshal([]byte(doctor(foundErrors, "--json")), &rows); err != nil || len(rows) < 2 || rows[0].Severity != "error" {
		t.Errorf("as JSON it says %+v: %v", rows, err)
	}
	if text := doctor(foundErrors, "--servers", "100"); !strings.Contains(text, "100 servers may open 1800 connections") {
		t.Errorf("of a hundred servers it says\n%s", text)
	}
	doctor(2, "--servers", "0")
	doctor(2, "now")

	// What it finds decides how it ends.
	pgtest.Exec(t, d.Pool, "create table public.found of ojs.finding")
	pgtest.Exec(t, d.Pool, "grant select on public.found to ojs_owner")
	pgtest.Exec(t, d.Pool, `create or replace function ojs.doctor(p_max_conns int default null, p_servers int default 1)
		returns setof ojs.finding language sql stable security definer as 'select * from public.found'`)
	if text := doctor(0); text != "nothing is wrong\n" {
		t.Errorf("with nothing wrong it says %q", text)
	}
	if text := doctor(0, "--json"); text != "[]\n" {
		t.Errorf("with nothing wrong it says %q as JSON", text)
	}
	pgtest.Exec(t, d.Pool, "insert into public.found values ('note', 't', 'f', 'a', 'r.md')")
	if text := doctor(0); text != "note: t: f\n    a\n    docs/runbooks/r.md\n" {
		t.Errorf("of a note it says %q", text)
	}
	pgtest.Exec(t, d.Pool, "insert into public.found values ('warning', 't', 'f', 'a', 'r.md')")
	doctor(foundWarnings)
	pgtest.Exec(t, d.Pool, "insert into public.found values ('error', 't', 'f', 'a', 'r.md')")
	doctor(foundErrors)
}

// What keeps it from asking is what is wrong.
func TestDoctorWithoutDatabaseOrSchema(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	doctor := func(url, want, runbook string) {
		t.Helper()
		var stdout, stderr bytes.Buffer
		if got := run([]string{"ojs-pg", "doctor", "--database-url", url}, &stdout, &stderr); got != foundErrors {
			t.Errorf("it ends with %d: %s%s", got, &stdout, &stderr)
		}
		if text := stdout.String(); !strings.HasPrefix(text, want) || !strings.Contains(text, runbook) {
			t.Errorf("it says\n%s, want\n%s", text, want)
		}
	}
	doctor("postgres://nobody@127.0.0.1:1/none", "error: connection: ", "postgres-away.md")
	url := d.OperatorURL()
	pgtest.Exec(t, d.Pool, "update ojs.schema_hash set hash = 'another'")
	doctor(url, "error: schema: ", "failed-migration.md")
}

// Whatever the doctor refers to is there.
func TestDoctorNamesRunbooksThatExist(t *testing.T) {
	t.Parallel()
	found := 0
	for _, file := range []string{
		"doctor.go", "../../db/code/operators/doctor.sql", "../../db/code/operators/doctor_work.sql",
		"../../db/code/operators/doctor_server.sql",
	} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`['"]([a-z-]+\.md)['"]`).FindAllStringSubmatch(string(text), -1) {
			found++
			if _, err := os.Stat("../../docs/runbooks/" + m[1]); err != nil {
				t.Errorf("%s names %s: %v", file, m[1], err)
			}
		}
	}
	if found < 20 {
		t.Errorf("only %d names of runbooks were found", found)
	}
}
