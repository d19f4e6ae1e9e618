package cmdline

import (
	"cmp"
	"math"
	"os"
	"path"
	"runtime/debug"
	"strconv"
	"strings"
)

// TuneMemory makes the program collect garbage less often, which saves processor time and costs
// memory. A server has little live memory and much garbage: collecting it four times less often
// costs some megabytes and saves a tenth of the processor time. With much live memory it would cost
// gigabytes. Therefore, above three quarters of the memory that there is, garbage is collected as
// often as is needed to stay below. GOGC and GOMEMLIMIT in the environment win.
func TuneMemory() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memoryLimit(os.ReadFile))
	}
}

// memoryLimit returns, in bytes, three quarters of the memory that the program may use: the memory
// of the machine, or the limit of its control group if that is less. If neither can be read, it
// returns math.MaxInt64, which is no limit.
func memoryLimit(read func(string) ([]byte, error)) int64 {
	// number returns the number in a file, or no limit if the file is absent.
	number := func(file string) int64 {
		raw, err := read(file)
		n, wrong := strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64)
		if err != nil || wrong != nil {
			return math.MaxInt64 // "max" stands for no limit
		}
		return n
	}
	most := int64(math.MaxInt64)
	if raw, err := read("/proc/meminfo"); err == nil {
		for line := range strings.Lines(string(raw)) {
			if kib, ok := strings.CutPrefix(line, "MemTotal:"); ok {
				n, _ := strconv.ParseInt(strings.Fields(kib)[0], 10, 64)
				most = cmp.Or(n*1024, most)
			}
		}
	}
	if raw, err := read("/proc/self/cgroup"); err == nil {
		for line := range strings.Lines(string(raw)) {
			parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
			if len(parts) < 3 {
				continue
			}
			// The groups above a group bound it, too, so that the least limit on the way to the
			// root holds. A container sees its own group as the root.
			root, file := "/sys/fs/cgroup", "memory.max"
			if parts[1] == "memory" { // version 1, which has a tree for each resource; version 2 has the number 0
				root, file = "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
			} else if parts[0] != "0" {
				continue
			}
			for group := path.Clean("/" + parts[2]); ; group = path.Dir(group) {
				most = min(most, number(path.Join(root, group, file)))
				if group == "/" {
					break
				}
			}
		}
	}
	if most == math.MaxInt64 {
		return most
	}
	return most / 4 * 3
}
