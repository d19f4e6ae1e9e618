//go:build linux

package soak

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ojs-pg/ojs-pg/internal/embedpg"
)

const database = "campaign"

// cluster is a primary that can be killed, run out of disk and be replaced by a standby. It does not use
// internal/embedpg, because the tests send signals to its processes.
type cluster struct {
	t        *testing.T
	bin      string
	owner    *syscall.Credential // PostgreSQL refuses root; nil: we are not root
	password string
	nodes    [2]*node
	primary  *node
	data     *disk
	wal      *disk
}

type node struct {
	c        *cluster
	name     string
	dir, wal string
	port     int
	process  *process
}

// disk is a directory with, if the test may mount, a file system of its own.
type disk struct {
	dir string
	max int64 // bytes; 0: not mounted
}

func newDisk(t *testing.T, dir string, size int64) *disk {
	t.Helper()
	d := &disk{dir: dir}
	if err := os.Mkdir(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	if os.Getenv(mountsEnv) == "own" && syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=711", size)) == nil {
		d.max = size
		t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	}
	return d
}

// fill makes the file system as small as what is in it.
func (d *disk) fill() error {
	for {
		var st syscall.Statfs_t
		if err := syscall.Statfs(d.dir, &st); err != nil {
			return err
		}
		used := (int64(st.Blocks) - int64(st.Bfree)) * st.Bsize
		if err := d.resize(used); err == nil || err != syscall.EINVAL {
			return err
		}
		// The content has grown meanwhile: try again.
	}
}

func (d *disk) free() error { return d.resize(d.max) }

func (d *disk) resize(size int64) error {
	return syscall.Mount("tmpfs", d.dir, "tmpfs", syscall.MS_REMOUNT, fmt.Sprintf("size=%d,mode=711", size))
}

func newCluster(t *testing.T, dir string) *cluster {
	t.Helper()
	found, err := embedpg.Find(os.Getenv("OJS_TEST_PG_BIN"))
	if err == nil && len(found) == 0 {
		found = make([]embedpg.Binaries, 1)
		found[0], err = embedpg.Fetch(t.Context(), embedpg.FetchOptions{})
	}
	if err != nil {
		t.Fatalf("find PostgreSQL's programs: %v", err)
	}
	c := &cluster{
		t: t, bin: found[0].Dir, password: newID(),
		data: newDisk(t, filepath.Join(dir, "data"), 4<<30), wal: newDisk(t, filepath.Join(dir, "wal"), 1<<30),
	}
	if os.Geteuid() == 0 {
		c.owner = &syscall.Credential{Uid: 65534, Gid: 65534}
		if account, err := user.Lookup("postgres"); err == nil {
			uid, _ := strconv.Atoi(account.Uid)
			gid, _ := strconv.Atoi(account.Gid)
			c.owner = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		}
	}
	for i, name := range []string{"a", "b"} {
		c.nodes[i] = &node{c: c, name: name, dir: filepath.Join(c.data.dir, name), wal: filepath.Join(c.wal.dir, name), port: freePort(t)}
	}
	n := c.nodes[0]
	n.makeDirs()
	secret := filepath.Join(n.wal, "..", "secret")
	if err := os.WriteFile(secret, []byte(c.password), 0o644); err != nil {
		t.Fatal(err)
	}
	c.run("initdb", "--pgdata="+n.dir, "--waldir="+n.wal, "--wal-segsize=1", "--username=ojs", "--pwfile="+secret, "--auth=scram-sha-256",
		"--encoding=UTF8", "--locale=C", "--data-checksums", "--no-sync")
	// Small segments of the log, and none prepared, so that PostgreSQL notices a full disk soon.
	config := `
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
max_connections = 120
shared_buffers = 64MB
min_wal_size = 2MB
max_wal_size = 128MB
wal_recycle = off
wal_keep_size = 128MB
wal_retrieve_retry_interval = 200ms
log_min_messages = warning
wal_level = replica
hot_standby = on
`
	file, err := os.OpenFile(filepath.Join(n.dir, "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.WriteString(config); err != nil {
		t.Fatal(err)
	}
	file.Close()
	t.Cleanup(func() {
		for _, n := range c.nodes {
			if n.process != nil {
				n.process.end(syscall.SIGQUIT, 10*time.Second)
			}
		}
	})
	n.start()
	c.primary = n
	return c
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

func (c *cluster) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(c.bin, name), args...)
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), "PGPASSWORD="+c.password, "LC_ALL=C")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: c.owner, Setpgid: true}
	return cmd
}

func (c *cluster) run(name string, args ...string) {
	c.t.Helper()
	if out, err := c.command(name, args...).CombinedOutput(); err != nil {
		c.t.Fatalf("%s: %v\n%s", name, err, out)
	}
}

func (n *node) makeDirs() {
	n.c.t.Helper()
	for _, dir := range []string{n.dir, n.wal} {
		if err := os.RemoveAll(dir); err != nil {
			n.c.t.Fatal(err)
		}
		if err := os.Mkdir(dir, 0o700); err != nil {
			n.c.t.Fatal(err)
		}
		if err := n.c.give(dir); err != nil {
			n.c.t.Fatal(err)
		}
	}
}

func (n *node) url(user, password, options string) string {
	u := url.URL{
		Scheme: "postgres", User: url.UserPassword(user, password), Host: fmt.Sprintf("127.0.0.1:%d", n.port), Path: "/" + database,
		RawQuery: options,
	}
	return u.String()
}

// start starts the node and returns when it answers. Processes of a killed postmaster may still run for
// a moment, so it tries again.
func (n *node) start() {
	n.c.t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		logFile, err := os.OpenFile(n.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			n.c.t.Fatal(err)
		}
		cmd := n.c.command("postgres", "-D", n.dir, "-p", strconv.Itoa(n.port))
		cmd.Stdout, cmd.Stderr = logFile, logFile
		n.process, err = spawn(cmd, syscall.SIGQUIT)
		logFile.Close()
		if err != nil {
			n.c.t.Fatal(err)
		}
		for n.process.alive() && time.Now().Before(deadline) {
			if conn, err := n.connect("postgres"); err == nil {
				conn.Close(context.Background())
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
		if time.Now().After(deadline) {
			n.c.t.Fatalf("PostgreSQL does not start:\n%s", n.logTail())
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (n *node) logFile() string {
	return filepath.Join(filepath.Dir(n.c.data.dir), "postgres-"+n.name+".log")
}

func (n *node) logTail() string {
	raw, _ := os.ReadFile(n.logFile())
	return string(raw[max(0, len(raw)-3000):])
}

// logged returns how often a phrase stands in the logs of all nodes.
func (c *cluster) logged(phrase string) (times int) {
	for _, n := range c.nodes {
		if n != nil {
			times += n.logged(phrase)
		}
	}
	return times
}

// logged returns how often a phrase stands in the node's log.
func (n *node) logged(phrase string) int {
	raw, _ := os.ReadFile(n.logFile())
	return bytes.Count(raw, []byte(phrase))
}

func (n *node) connect(database string) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return pgx.Connect(ctx, fmt.Sprintf("postgres://ojs:%s@127.0.0.1:%d/%s", n.c.password, n.port, database))
}

// back waits until the node answers again, for instance after a crash. It starts the node if its
// postmaster has ended.
func (n *node) back() {
	n.c.t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		if !n.process.alive() {
			n.start()
			return
		}
		conn, err := n.connect(database)
		if err == nil {
			conn.Close(context.Background())
			return
		}
		if time.Now().After(deadline) {
			n.c.t.Fatalf("PostgreSQL does not come back: %v\n%s", err, n.logTail())
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// do runs statements on the node as superuser. It returns an error, because a fault may interrupt them.
func (n *node) do(statements ...string) error {
	conn, err := n.connect(database)
	if err != nil {
		return err
	}
	defer conn.Close(context.Background())
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for _, s := range statements {
		if _, err := conn.Exec(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// killBackend kills one random session with SIGKILL. The postmaster then ends all sessions and recovers.
func (n *node) killBackend(pick int) error {
	conn, err := n.connect(database)
	if err != nil {
		return err
	}
	defer conn.Close(context.Background())
	var pid int
	err = conn.QueryRow(context.Background(), `
		select pid from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()
		order by pid offset $1 % (select count(*) - 1 from pg_stat_activity where datname = current_database()) limit 1`, pick).Scan(&pid)
	if err != nil {
		return err
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return err
	}
	// Until the postmaster notices, it accepts connections. It has noticed when it ends this session, too.
	_, _ = conn.Exec(context.Background(), "select pg_sleep(10)")
	return nil
}

func (c *cluster) other() *node {
	if c.primary == c.nodes[0] {
		return c.nodes[1]
	}
	return c.nodes[0]
}

// addStandby copies the primary and waits until commits wait for the copy.
func (c *cluster) addStandby() {
	c.t.Helper()
	n := c.other()
	if n.process != nil {
		n.process.end(syscall.SIGQUIT, 10*time.Second)
	}
	if err := c.copyTo(n); err != nil {
		c.t.Fatalf("copy the primary: %v", err)
	}
	n.start()
	if err := c.primary.do("alter system set synchronous_standby_names = '*'", "select pg_reload_conf()"); err != nil {
		c.t.Fatal(err)
	}
	deadline := time.Now().Add(30 * time.Second)
	for {
		var state string
		conn, err := c.primary.connect(database)
		if err == nil {
			err = conn.QueryRow(context.Background(), `
				select coalesce(string_agg(sync_state, ' '), '') from pg_stat_replication`).Scan(&state)
			conn.Close(context.Background())
		}
		if state == "sync" {
			return
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("the standby is %q, not sync: %v\n%s", state, err, n.logTail())
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// copyTo makes a node a standby of the primary. It copies the files itself, because some installations
// have no pg_basebackup.
func (c *cluster) copyTo(n *node) error {
	n.makeDirs()
	ctx := context.Background()
	conn, err := c.primary.connect(database)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, "select pg_backup_start('campaign', true)"); err != nil {
		return err
	}
	out, err := exec.Command("cp", "-a", c.primary.dir+"/.", n.dir).CombinedOutput()
	for line := range strings.Lines(string(out)) {
		// Files may vanish during the copy. That does no harm: recovery replays the log.
		if err != nil && !strings.Contains(line, "No such file") {
			return fmt.Errorf("%w: %s", err, out)
		}
	}
	var label string
	if err := conn.QueryRow(ctx, "select labelfile from pg_backup_stop(false)").Scan(&label); err != nil {
		return err
	}
	auto, err := os.ReadFile(filepath.Join(n.dir, "postgresql.auto.conf"))
	if err != nil {
		return err
	}
	// After its promotion it has no standby, so its commits must not wait for one.
	settings := fmt.Sprintf("%s\nsynchronous_standby_names = ''\nprimary_conninfo = 'host=127.0.0.1 port=%d user=ojs password=%s'\n",
		bytes.TrimSpace(auto), c.primary.port, c.password)
	for name, content := range map[string]string{"backup_label": label, "standby.signal": "", "postgresql.auto.conf": settings} {
		path := filepath.Join(n.dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			return err
		}
		if err := c.give(path); err != nil {
			return err
		}
	}
	for _, name := range []string{"pg_wal", "postmaster.pid", "postmaster.opts"} {
		if err := os.Remove(filepath.Join(n.dir, name)); err != nil && !os.IsNotExist(err) {
			return err
		}
	}
	return os.Symlink(n.wal, filepath.Join(n.dir, "pg_wal"))
}

// give makes a file belong to the user that PostgreSQL runs as.
func (c *cluster) give(path string) error {
	if c.owner == nil {
		return nil
	}
	return os.Chown(path, int(c.owner.Uid), int(c.owner.Gid))
}

// failover kills the primary with all its sessions, and promotes the standby. It returns the times of
// the kill and of the moment at which the standby could be written.
func (c *cluster) failover() (killed, promoted time.Time, err error) {
	old, heir := c.primary, c.other()
	killed = time.Now()
	old.process.signal(syscall.SIGKILL)
	<-old.process.gone
	conn, err := heir.connect(database)
	if err != nil {
		return killed, killed, fmt.Errorf("connect to the standby: %w", err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(context.Background(), "select pg_promote(true, 60)"); err != nil {
		return killed, killed, fmt.Errorf("promote: %w", err)
	}
	c.primary = heir
	old.process = nil
	return killed, time.Now(), nil
}

// salvage stops the cluster and copies the primary's files to a directory that survives the test.
func (c *cluster) salvage(to string) string {
	c.primary.process.end(syscall.SIGINT, 20*time.Second)
	target := filepath.Join(to, "pgdata")
	if out, err := exec.Command("cp", "-aL", c.primary.dir, target).CombinedOutput(); err != nil {
		return fmt.Sprintf("the database could not be kept: %v: %s", err, out)
	}
	return fmt.Sprintf("the database is kept; as the owner of the files: %s/postgres -D %s -p %d -k /tmp, user ojs, password %s",
		c.bin, target, c.primary.port, c.password)
}

// throughURL returns an address of the database through proxies, one for each node. A client that uses
// it connects to the primary.
func throughURL(proxies []*proxy, user, password string) string {
	var hosts []string
	for _, x := range proxies {
		hosts = append(hosts, x.address())
	}
	return fmt.Sprintf("postgres://%s:%s@%s/%s?target_session_attrs=read-write&connect_timeout=3", user, password,
		strings.Join(hosts, ","), database)
}
