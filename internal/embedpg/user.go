//go:build unix

package embedpg

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
)

// home is the data directory, and the user that PostgreSQL runs as. If an ordinary user starts the
// server, it runs as that user. PostgreSQL refuses root: if root starts it, it runs as an unprivileged
// user, which may lack the permission to enter a parent of the directory.
type home struct {
	dir    string // absolute
	root   bool   // we are root, so the server runs as uid, gid
	uid    int
	gid    int
	user   string   // for messages
	handle *os.File // the open directory, if uid cannot enter a parent of it
}

// fallbackID is the conventional id of the user nobody, for machines that list no such account.
const fallbackID = 65534

// openHome returns the home of a data directory that exists. For root it picks the user that the
// server runs as, and makes sure that this user reaches the directory.
func openHome(dir string) (*home, error) {
	h := &home{dir: dir, uid: os.Getuid(), gid: os.Getgid(), user: uidName(os.Getuid())}
	if os.Geteuid() != 0 {
		return h, nil
	}
	h.root = true
	h.uid, h.gid, h.user = unprivileged()
	info, err := os.Stat(dir)
	if err != nil {
		return nil, fmt.Errorf("look at the data directory: %w", err)
	}
	// A directory that belongs to an ordinary user keeps its owner: an earlier start without root made it, or one before the
	// account `postgres` existed.
	for _, path := range []string{filepath.Join(dir, clusterName), dir} {
		if uid, gid, err := ownerOf(path); err == nil && uid != 0 {
			h.uid, h.gid, h.user = uid, gid, uidName(uid)
			break
		}
	}
	// The directory stays root's, because the password is in it. The server's user only needs to pass
	// through it to the cluster.
	if uid, _, err := ownerOf(dir); err == nil && uid == 0 && info.Mode().Perm()&0o011 != 0o011 {
		if err := os.Chmod(dir, info.Mode().Perm()|0o011); err != nil {
			return nil, fmt.Errorf("let %s pass through the data directory: %w", h.user, err)
		}
	}
	if h.canReach(dir) {
		return h, nil
	}
	if runtime.GOOS != "linux" {
		return nil, fmt.Errorf("PostgreSQL refuses root and runs as %s, who cannot enter a parent directory of %s: "+
			"name a data directory elsewhere with --data-dir (for instance /var/lib/ojs-pg), or start as an ordinary user", h.user, dir)
	}
	// The directory lies below one that only root may enter, such as a home directory, whose mode must not
	// change. The server reaches the data directory through an open descriptor instead.
	if h.handle, err = os.Open(dir); err != nil {
		return nil, fmt.Errorf("open the data directory: %w", err)
	}
	return h, nil
}

// close releases the descriptor of the directory. A server that runs has a copy of its own.
func (h *home) close() {
	if h.handle != nil {
		h.handle.Close()
	}
}

// path returns the path by which the server's processes reach a file in the data directory.
func (h *home) path(name string) string {
	if h.handle != nil {
		// prepare passes the handle as the first descriptor after the standard three.
		return "/proc/self/fd/3/" + name
	}
	return filepath.Join(h.dir, name)
}

// prepare makes a command run as the server's user; in a process group of its own, so that Ctrl-C in
// the terminal does not reach it; and without the PG* and locale variables of our environment, which
// would change its settings.
func (h *home) prepare(cmd *exec.Cmd) {
	for _, entry := range os.Environ() {
		name, _, _ := strings.Cut(entry, "=")
		if strings.HasPrefix(name, "PG") || strings.HasPrefix(name, "LC_") || name == "LANG" || name == "LANGUAGE" {
			continue
		}
		cmd.Env = append(cmd.Env, entry)
	}
	cmd.Env = append(cmd.Env, "LC_ALL=C")
	cmd.Dir = "/" // the server's user may lack the permission to enter ours
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if h.root {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(h.uid), Gid: uint32(h.gid)}
	}
	if h.handle != nil {
		cmd.ExtraFiles = []*os.File{h.handle}
	}
}

// explain adds the likely reason to the error of a program that could not be started.
func (h *home) explain(err error) error {
	if h.root && errors.Is(err, syscall.EPERM) {
		return fmt.Errorf("%w (PostgreSQL refuses root, and becoming %s is not permitted here: start as an ordinary user)", err, h.user)
	}
	return err
}

// mkdir makes a directory that belongs to the server's user.
func (h *home) mkdir(name string) error {
	path := filepath.Join(h.dir, name)
	if err := os.Mkdir(path, 0o700); err != nil {
		return fmt.Errorf("create %s: %w", path, err)
	}
	return h.give(path)
}

// give makes a file or directory belong to the server's user. Without root it does already.
func (h *home) give(path string) error {
	if !h.root {
		return nil
	}
	if err := os.Lchown(path, h.uid, h.gid); err != nil {
		return fmt.Errorf("give %s to %s: %w", path, h.user, err)
	}
	return nil
}

// openIn opens or creates a file in the data directory that only its owner may read. The file belongs
// to the owner of the directory, who can then start the server without root later. It refuses a
// symbolic link: otherwise that owner could make root write to another file.
func openIn(dir, name string, flag int) (*os.File, error) {
	file, err := os.OpenFile(filepath.Join(dir, name), flag|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if os.Geteuid() == 0 {
		uid, gid, err := ownerOf(dir)
		if err == nil {
			err = file.Chown(uid, gid)
		}
		if err != nil {
			file.Close()
			return nil, err
		}
	}
	return file, nil
}

// writeIn replaces the content of a file in the data directory.
func writeIn(dir, name, content string) error {
	file, err := openIn(dir, name, os.O_WRONLY|os.O_TRUNC)
	if err != nil {
		return err
	}
	_, err = file.WriteString(content)
	return errors.Join(err, file.Close())
}

// ownerOf returns the owner of a file. It follows symbolic links.
func ownerOf(path string) (uid, gid int, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, 0, err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, 0, errors.New("the file system tells no owner")
	}
	return int(stat.Uid), int(stat.Gid), nil
}

// uidName returns a name of a user for messages.
func uidName(uid int) string { return "uid " + strconv.Itoa(uid) }

// canReach reports whether the server's user may enter all parents of path and path itself. It reads
// modes and no access control lists; if such a list forbids it, PostgreSQL's own error says so.
func (h *home) canReach(path string) bool {
	if !h.root {
		return true
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return false
	}
	for {
		info, err := os.Stat(real)
		if err != nil {
			return false
		}
		uid, gid, err := ownerOf(real)
		if err != nil {
			return false
		}
		mode := info.Mode().Perm()
		switch {
		case uid == h.uid:
			mode >>= 6
		case gid == h.gid:
			mode >>= 3
		}
		if mode&1 == 0 {
			return false
		}
		parent := filepath.Dir(real)
		if parent == real {
			return true
		}
		real = parent
	}
}

// unprivileged returns the user that a server started by root runs as: postgres, else nobody.
func unprivileged() (uid, gid int, name string) {
	for _, name := range []string{"postgres", "nobody"} {
		account, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.Atoi(account.Uid)
		gid, err2 := strconv.Atoi(account.Gid)
		if err1 == nil && err2 == nil && uid > 0 {
			return uid, gid, "the user " + name
		}
	}
	return fallbackID, fallbackID, uidName(fallbackID)
}
