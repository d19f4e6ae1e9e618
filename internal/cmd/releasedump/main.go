// Command releasedump writes db/releases/<release>.sql.gz: a database of this release with a few rows of each kind, as pg_dump of
// PostgreSQL 15 writes it. Tests upgrade it to what comes later. It is run once, in the commit of the release.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/ojs-pg/ojs-pg/db"
	"github.com/ojs-pg/ojs-pg/internal/embedpg"
	"github.com/ojs-pg/ojs-pg/internal/migrate"
	"github.com/ojs-pg/ojs-pg/internal/setup"
)

func main() {
	if err := write(context.Background(), filepath.Join("db", "releases")); err != nil {
		fmt.Fprintln(os.Stderr, "releasedump:", err)
		os.Exit(1)
	}
}

func write(ctx context.Context, dir string) (err error) {
	sample, err := os.ReadFile(filepath.Join(dir, "sample.sql"))
	if err != nil {
		return err
	}
	found, err := embedpg.Find("")
	if err != nil {
		return err
	}
	at := slices.IndexFunc(found, func(b embedpg.Binaries) bool { return b.Major == 15 })
	if at < 0 {
		return errors.New("PostgreSQL 15 is not here")
	}
	data, err := os.MkdirTemp("", "releasedump-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(data)) }()
	server, err := embedpg.Start(ctx, embedpg.Options{BinDir: found[at].Dir, DataDir: data})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	const name = "ojs"
	if err := setup.CreateDatabase(ctx, server.URL("postgres"), name); err != nil {
		return err
	}
	if err := migrate.Run(ctx, server.URL(name), migrate.Up, nil); err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, server.URL(name))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(ctx)) }()
	// Each in a transaction of its own: the later ones take in what the earlier ones committed.
	for statement := range strings.SplitSeq(string(sample), ";\n") {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return fmt.Errorf("%s: %w", strings.TrimSpace(statement), err)
		}
	}
	dump := exec.CommandContext(ctx, filepath.Join(found[at].Dir, "pg_dump"), "--inserts", "--compress", "9", "--dbname", server.URL(name),
		"--file", filepath.Join(dir, db.Release+".sql.gz"))
	dump.Stderr = os.Stderr
	return dump.Run()
}
