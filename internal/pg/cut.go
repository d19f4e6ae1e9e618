package pg

import (
	"context"
	"net"

	"github.com/jackc/pgx/v5/pgconn"
)

// Cut breaks all connections off, also those that are just being made, and lets none be made any more: whatever is under way fails at once, and
// Close has nothing to wait for. PostgreSQL may still carry out what it has received.
func (d *DB) Cut() { d.cut() }

// wire is a connection that ends with its context.
type wire struct {
	net.Conn
	forget func() bool
}

func (w wire) Close() error {
	w.forget()
	return w.Conn.Close()
}

// until makes connections that end when whole does.
func until(whole context.Context, dial pgconn.DialFunc) pgconn.DialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(whole, cancel)()
		conn, err := dial(ctx, network, address)
		if err != nil {
			if whole.Err() != nil {
				err = net.ErrClosed // nobody's caller has left
			}
			return nil, err
		}
		return wire{conn, context.AfterFunc(whole, func() { _ = conn.Close() })}, nil
	}
}
