package pgtest

import (
	"encoding/binary"
	"io"
	"net"
	"net/url"
	"sync/atomic"
	"testing"
)

// SilentWay is a way to a PostgreSQL that lets sessions begin and then passes nothing on, for so many sessions; later ones work.
func SilentWay(t *testing.T, address string, sessions int64) (through string) {
	t.Helper()
	parsed, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	var left atomic.Int64
	left.Store(sessions)
	to := parsed.Host
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", to)
			if err != nil {
				_ = client.Close()
				continue
			}
			t.Cleanup(func() { _ = client.Close(); _ = server.Close() })
			go func() {
				_, _ = io.Copy(server, client)
				// PostgreSQL would wait a minute for the rest of a login, and no database is dropped meanwhile.
				_ = server.Close()
			}()
			go passOn(client, server, left.Add(-1) >= 0)
		}
	}()
	parsed.Host = listener.Addr().String()
	query := parsed.Query()
	query.Set("sslmode", "disable")
	parsed.RawQuery = query.Encode()
	return parsed.String()
}

// passOn passes PostgreSQL's messages on, to the end or until the session is ready.
func passOn(client, server net.Conn, untilReady bool) {
	defer func() {
		if !untilReady {
			_ = client.Close()
		}
	}()
	for {
		header := make([]byte, 5)
		if _, err := io.ReadFull(server, header); err != nil {
			return
		}
		body := make([]byte, binary.BigEndian.Uint32(header[1:])-4)
		if _, err := io.ReadFull(server, body); err != nil {
			return
		}
		if _, err := client.Write(append(header, body...)); err != nil {
			return
		}
		if untilReady && header[0] == 'Z' {
			return
		}
	}
}
