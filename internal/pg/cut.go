package pg

import (
	"context"
	"net"

	"github.com/jackc/pgx/v5/pgconn"
)

// Cut closes all connections at once, also those that are being opened, and no more can be opened.
// Statements in flight fail, so Close does not have to wait for them. PostgreSQL may still carry
// out what it has received.
func (d *DB) Cut() { d.cut() }

// boundConn is a connection that ends with a context.
type boundConn struct {
	net.Conn
	unbind func() bool
}

func (c boundConn) Close() error {
	c.unbind()
	return c.Conn.Close()
}

// dialUntil makes connections that end when lifetime does.
func dialUntil(lifetime context.Context, dial pgconn.DialFunc) pgconn.DialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(lifetime, cancel)()
		conn, err := dial(ctx, network, address)
		if err != nil {
			if lifetime.Err() != nil {
				err = net.ErrClosed // not context.Canceled, which would mean that the caller has left
			}
			return nil, err
		}
		return boundConn{conn, context.AfterFunc(lifetime, func() { _ = conn.Close() })}, nil
	}
}
