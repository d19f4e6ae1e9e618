//go:build unix

package bench

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Machine describes the machine of the benchmark. The database is on it too, unless its URL names
// another one.
type Machine struct {
	CPU        string  `json:"cpu"`
	CPUs       int     `json:"cpus"`
	MemoryGiB  float64 `json:"memory_gib"`
	OS         string  `json:"os"`
	Filesystem string  `json:"filesystem,omitempty"` // of the server's data, where known
	Go         string  `json:"go"`
	PostgreSQL string  `json:"postgresql"`
	// OwnServer says that the server was started for this run.
	OwnServer bool `json:"own_server"`
}

// Settings holds PostgreSQL settings: those that matter, and all that are not the default.
type Settings map[string]string

// describe returns the machine and the settings of PostgreSQL, for the result.
func (e *Env) describe(ctx context.Context, d *database) (Machine, Settings, error) {
	m := Machine{
		CPU: field("/proc/cpuinfo", "model name"), CPUs: runtime.NumCPU(), OS: runtime.GOOS + "/" + runtime.GOARCH + kernel(),
		Go: runtime.Version(), OwnServer: e.own != nil,
	}
	var kb float64
	if _, err := fmt.Sscanf(field("/proc/meminfo", "MemTotal"), "%f kB", &kb); err == nil {
		m.MemoryGiB = round(kb/(1<<20), 1)
	}
	if e.own != nil {
		m.Filesystem = filesystem(e.ownDir)
	}
	if err := d.control.QueryRow(ctx, "select current_setting('server_version')").Scan(&m.PostgreSQL); err != nil {
		return m, nil, fmt.Errorf("read the server's version: %w", err)
	}
	rows, err := d.control.Query(ctx, `
		select name, current_setting(name) from pg_settings
		where name in ('fsync', 'synchronous_commit', 'full_page_writes', 'wal_level', 'wal_compression', 'shared_buffers',
				'max_wal_size', 'checkpoint_timeout', 'max_connections', 'autovacuum', 'data_checksums', 'jit',
				'commit_delay', 'random_page_cost')
			or source in ('command line', 'configuration file', 'database')
				and name not in ('port', 'listen_addresses', 'unix_socket_directories', 'search_path', 'cluster_name')
				and name not like 'lc\_%' and name not like '%\_file' and name not like 'log%' and name not like 'password%'`)
	if err != nil {
		return m, nil, fmt.Errorf("read the server's settings: %w", err)
	}
	all := Settings{}
	var name, value string
	_, err = pgx.ForEachRow(rows, []any{&name, &value}, func() error { all[name] = value; return nil })
	if err != nil {
		return m, nil, fmt.Errorf("read the server's settings: %w", err)
	}
	return m, all, nil
}

// field returns the first value of a key in a file of /proc; empty on systems without it.
func field(path, key string) string {
	file, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer file.Close()
	for scan := bufio.NewScanner(file); scan.Scan(); {
		name, value, ok := strings.Cut(scan.Text(), ":")
		if ok && strings.TrimSpace(name) == key {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// kernel returns the release of the kernel after a space, or "" if it is not known.
func kernel() string {
	raw, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return ""
	}
	return " " + strings.TrimSpace(string(raw))
}
