package pg

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Reset removes everything that clients have put into the database at url, whose role must be
// a superuser: for conformance runs. What stays belongs to the schema (problems, its hash, the lane) or
// to the running servers (who waits for what), or says how far an append-only journal has
// been read, which stays true when the journal is emptied.
func Reset(ctx context.Context, url string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return fmt.Errorf("connect to reset the database: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for {
		_, err := conn.Exec(ctx, `
			do $$
			declare
				v_tables text;
			begin
				-- Servers take their locks in other orders than truncate, and go on working. Whoever resets gives way long before anybody would look for a deadlock,
				-- and begins again.
				set local lock_timeout = '100ms';
				-- No decision is under way while the tables it writes are emptied.
				perform from ojs.lane for update;
				select string_agg(format('ojs.%I', relname), ', ' order by relname) into strict v_tables
				from pg_catalog.pg_class
				where relnamespace = 'ojs'::regnamespace and relkind in ('r', 'p') and not relispartition
					and relname not in ('problem', 'schema_hash', 'lane', 'fold', 'tally_mark', 'clock_mark', 'cut', 'upkeep_task',
						'settings', 'waiter', 'sleeper', 'duty', 'dead_letter_mark', 'tenant_role');
				execute 'truncate ' || v_tables;
				update ojs.fold f set part_xid = null, part_lo = null;
				delete from ojs.settings;
				insert into ojs.settings default values;
			end $$`)
		if lockConflict(err) && ctx.Err() == nil {
			continue
		}
		if err != nil {
			return fmt.Errorf("reset the database: %w", err)
		}
		return nil
	}
}
