// Command go is a producer: DATABASE_URL=... go run ./examples/producer/go. The job is in the transaction of the order. Any driver
// will do; this one is pgx.
package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"log"
	"os"

	_ "github.com/jackc/pgx/v5/stdlib"
)

func main() {
	log.SetFlags(0)
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	db, err := sql.Open("pgx", os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer db.Close()
	if _, err := db.ExecContext(ctx, `create table if not exists public.orders (
		id bigint generated always as identity primary key, email text not null, total numeric not null)`); err != nil {
		return err
	}
	id, err := place(ctx, db, "ada@example.com", 99.50)
	if err != nil {
		return err
	}
	fmt.Println(id)
	return nil
}

// place stores an order and the job that sends its receipt: both, or neither.
func place(ctx context.Context, db *sql.DB, email string, total float64) (job string, err error) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return "", err
	}
	defer func() { _ = tx.Rollback() }()
	var order int64
	if err := tx.QueryRowContext(ctx, "insert into public.orders (email, total) values ($1, $2) returning id", email, total).
		Scan(&order); err != nil {
		return "", fmt.Errorf("store the order: %w", err)
	}
	if job, err = enqueue(ctx, tx, "receipt.send", "acme", order, email); err != nil {
		return "", fmt.Errorf("enqueue its receipt: %w", err)
	}
	return job, tx.Commit()
}

func enqueue(ctx context.Context, tx *sql.Tx, kind, tenant string, args ...any) (id string, err error) {
	raw, err := json.Marshal(args)
	if err != nil {
		return "", err
	}
	err = tx.QueryRowContext(ctx, "select id from ojs.enqueue($1, $2, p_tenant => $3)", kind, string(raw), tenant).
		Scan(&id)
	return id, err
}
