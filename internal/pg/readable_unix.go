//go:build unix

package pg

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// readable reports, without waiting and without reading it, whether something has come over a
// connection, its end included.
func readable(conn net.Conn) (is bool) {
	if encrypted, ok := conn.(interface{ NetConn() net.Conn }); ok {
		conn = encrypted.NetConn()
	}
	if bound, ok := conn.(boundConn); ok {
		conn = bound.Conn
	}
	socket, ok := conn.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := socket.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) {
			events, _ := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0) // fails where a signal comes; one look is lost
			is = events > 0
		})
	}
	return is || err != nil
}
