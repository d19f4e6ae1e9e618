// Package setup makes what a server finds when it starts: the database, login roles for servers and
// for applications. For tests and conformance runs it empties a database.
package setup

import (
	"context"
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/ojs-pg/ojs-pg/internal/pg"
)

// CreateDatabase makes a database if it is absent. url is any database of the server, with a role
// that may create databases.
func CreateDatabase(ctx context.Context, url, name string) error {
	conn, err := pg.Connect(ctx, url)
	if err != nil {
		return fmt.Errorf("connect to create the database: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var exists bool
	if err := conn.QueryRow(ctx, "select exists (select from pg_catalog.pg_database where datname = $1)", name).Scan(&exists); err != nil {
		return fmt.Errorf("look for the database %s: %w", name, err)
	}
	if exists {
		return nil
	}
	if _, err := conn.Exec(ctx, "create database "+pgx.Identifier{name}.Sanitize()); err != nil {
		return fmt.Errorf("create the database %s: %w", name, err)
	}
	return nil
}

// CreateServerRole makes a login role for servers if it is absent, as a member of ojs_service
// alone, and sets its password in any case.
func CreateServerRole(ctx context.Context, url, role, password string) error {
	return createLogin(ctx, url, role, password, "ojs_service")
}

// CreateAppRole makes a login role for applications if it is absent, and sets its password in any
// case. The role may enqueue for any tenant, work and read, and make tables of its own in schema
// public.
func CreateAppRole(ctx context.Context, url, role, password string) error {
	return createLogin(ctx, url, role, password, "ojs_producer, ojs_worker", "grant usage, create on schema public to %I")
}

// createLogin makes a login role as a member of groups if it is absent, sets its password, and runs
// grants, each a format with %I for the role.
func createLogin(ctx context.Context, url, role, password, groups string, grants ...string) error {
	conn, err := pg.Connect(ctx, url)
	if err != nil {
		return fmt.Errorf("connect to create the role %s: %w", role, err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	secret, err := verifier(password)
	if err != nil {
		return fmt.Errorf("create the role %s: %w", role, err)
	}
	var statements []string
	err = conn.QueryRow(ctx, `
		select array_remove(array[
			case when to_regrole(quote_ident($1)) is null then format('create role %I login in role ' || $3, $1::text) end,
			format('alter role %I password %L', $1::text, $2::text)], null)
			|| array(select format(g, $1::text) from unnest($4::text[]) g)`, role, secret, groups, grants).Scan(&statements)
	if err != nil {
		return fmt.Errorf("look for the role %s: %w", role, err)
	}
	for _, sql := range statements {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("create the role %s: %w", role, err)
		}
	}
	return nil
}

// verifier returns the SCRAM-SHA-256 verifier (RFC 5802) that PostgreSQL stores for a password of
// ASCII characters. Sent in place of the password, it keeps the password out of the server and its
// log.
func verifier(password string) (string, error) {
	const rounds = 4096
	salt := make([]byte, 16)
	_, _ = rand.Read(salt) // never fails
	salted, err := pbkdf2.Key(sha256.New, password, salt, rounds, sha256.Size)
	if err != nil {
		return "", fmt.Errorf("derive a verifier of the password: %w", err)
	}
	keyed := func(label string) []byte {
		mac := hmac.New(sha256.New, salted)
		mac.Write([]byte(label))
		return mac.Sum(nil)
	}
	stored, encode := sha256.Sum256(keyed("Client Key")), base64.StdEncoding.EncodeToString
	return fmt.Sprintf("SCRAM-SHA-256$%d:%s$%s:%s", rounds, encode(salt), encode(stored[:]), encode(keyed("Server Key"))), nil
}
