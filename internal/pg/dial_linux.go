package pg

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// setUserTimeout has the kernel end a connection whose other end does not confirm what was sent.
// Keepalives only see connections on which nothing is sent.
func setUserTimeout(_, _ string, raw syscall.RawConn) error {
	return raw.Control(func(fd uintptr) {
		// On a socket of another kind it does nothing.
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(userTimeout.Milliseconds()))
	})
}
