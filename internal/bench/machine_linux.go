package bench

import (
	"fmt"
	"syscall"
)

// filesystem returns the kind of file system of a directory. On one in memory a durable commit costs
// nothing, and no figure means anything.
func filesystem(dir string) string {
	var stat syscall.Statfs_t
	if err := syscall.Statfs(dir, &stat); err != nil {
		return ""
	}
	switch int64(stat.Type) {
	case 0x01021994:
		return "tmpfs (IN MEMORY: commits are not durable)"
	case 0xEF53:
		return "ext4"
	case 0x58465342:
		return "xfs"
	case 0x9123683E:
		return "btrfs"
	case 0x794C7630:
		return "overlayfs"
	case 0x2FC12FC1:
		return "zfs"
	}
	return fmt.Sprintf("type %#x", stat.Type)
}
