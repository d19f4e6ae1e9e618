package cmdline

import (
	"math"
	"os"
	"testing"
)

func TestMemoryLimit(t *testing.T) {
	t.Parallel()
	const gib = 1 << 30
	machine := "MemTotal:        8388608 kB\nMemFree:          100 kB\n"
	for name, c := range map[string]struct {
		files map[string]string
		want  int64
	}{
		"nothing to read": {nil, math.MaxInt64},
		"a machine":       {map[string]string{"/proc/meminfo": machine}, 6 * gib},
		"a container": {map[string]string{
			"/proc/meminfo": machine, "/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/memory.max": "536870912\n",
		}, 384 << 20},
		"a group without a limit of its own in one that has one": {map[string]string{
			"/proc/meminfo": machine, "/proc/self/cgroup": "0::/system.slice/ojs.service\n",
			"/sys/fs/cgroup/system.slice/ojs.service/memory.max": "max\n", "/sys/fs/cgroup/system.slice/memory.max": "4294967296\n",
		}, 3 * gib},
		"the older kind of control group": {map[string]string{
			"/proc/meminfo": machine, "/proc/self/cgroup": "5:cpu,cpuacct:/x\n4:memory:/docker/abc\n",
			"/sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": "9223372036854771712\n",
			"/sys/fs/cgroup/memory/memory.limit_in_bytes":            "1073741824\n",
		}, 768 << 20},
		"a limit above the machine's memory": {map[string]string{
			"/proc/meminfo": machine, "/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/memory.max": "99999999999999\n",
		}, 6 * gib},
	} {
		read := func(file string) ([]byte, error) {
			if text, ok := c.files[file]; ok {
				return []byte(text), nil
			}
			return nil, os.ErrNotExist
		}
		if got := memoryLimit(read); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}
