//go:build !unix

package pg

import "net"

func readable(net.Conn) bool { return false }
