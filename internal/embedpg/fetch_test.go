//go:build unix

package embedpg

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// serverFiles maps paths in the archive to the files of this machine's own PostgreSQL that a server
// needs.
func serverFiles(t *testing.T, local Binaries) map[string]string {
	t.Helper()
	files := map[string]string{}
	for _, program := range []string{"postgres", "initdb"} {
		files["bin/"+program] = filepath.Join(local.Dir, program)
	}
	prefix := filepath.Dir(local.Dir)
	share := filepath.Join(prefix, "share")
	if _, err := os.Stat(share); errors.Is(err, fs.ErrNotExist) {
		share = filepath.Join("/usr/share/postgresql", fmt.Sprint(local.Major)) // Debian
	}
	for name, root := range map[string]string{"lib": filepath.Join(prefix, "lib"), "share": share} {
		err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if entry.IsDir() && (entry.Name() == "bitcode" || entry.Name() == "man") {
				return filepath.SkipDir
			}
			if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
				files[name+strings.TrimPrefix(path, root)] = path
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return files
}

// repository serves files as Maven Central serves zonky's builds: a jar that holds a .txz, and a file
// with its checksum.
func repository(t *testing.T, files map[string]string, checksum func(jar []byte) string) (server *httptest.Server, requests *atomic.Int32) {
	t.Helper()
	jar := jarOf(t, "postgres-"+runtime.GOOS+".txz", xzStored(tarOf(t, files)))
	requests = new(atomic.Int32)
	server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		path, ok := strings.CutPrefix(r.URL.Path, "/mirror/io/zonky/test/postgres/embedded-postgres-binaries-"+runtime.GOOS+"-")
		switch sum := checksum(jar); {
		case !ok:
			http.NotFound(w, r)
		case strings.HasSuffix(path, ".jar"):
			w.Header().Set("Content-Length", fmt.Sprint(len(jar)))
			_, _ = w.Write(jar)
		case strings.HasSuffix(path, ".jar.sha256") && sum != "":
			_, _ = io.WriteString(w, sum)
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(server.Close)
	return server, requests
}

// tarOf packs files, by their names in the archive.
func tarOf(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var archive bytes.Buffer
	packed := tar.NewWriter(&archive)
	for name, path := range files {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		header := &tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(content)), Mode: int64(info.Mode().Perm())}
		if err := packed.WriteHeader(header); err != nil {
			t.Fatal(err)
		}
		if _, err := packed.Write(content); err != nil {
			t.Fatal(err)
		}
	}
	if err := packed.Close(); err != nil {
		t.Fatal(err)
	}
	return archive.Bytes()
}

func jarOf(t *testing.T, name string, content []byte) []byte {
	t.Helper()
	var jar bytes.Buffer
	zipped := zip.NewWriter(&jar)
	// Not compressed, which would take most of the time of these tests.
	inner, err := zipped.CreateHeader(&zip.FileHeader{Name: name, Method: zip.Store})
	if err == nil {
		_, err = inner.Write(content)
	}
	if err == nil {
		err = zipped.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return jar.Bytes()
}

func sha256Line(jar []byte) string {
	sum := sha256.Sum256(jar)
	return hex.EncodeToString(sum[:]) + "  embedded-postgres-binaries.jar\n"
}

func localBinaries(t *testing.T) Binaries {
	t.Helper()
	found, err := Find("")
	if err != nil {
		t.Fatal(err)
	}
	return found[0]
}

// cache returns a directory that the server's user may enter even if root runs the test.
func cache(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "ojs-pg-cache-")
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func TestFetchAndRun(t *testing.T) {
	t.Parallel()
	local := localBinaries(t)
	server, requests := repository(t, serverFiles(t, local), sha256Line)
	dir := cache(t)
	var step string
	var done, total int64
	opts := FetchOptions{
		Major: local.Major, Repository: server.URL + "/mirror/", CacheDir: dir,
		Progress: func(s string, d, n int64) { step, done, total = s, d, n },
	}
	b, err := Fetch(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	if b.Version != local.Version || !strings.HasPrefix(b.Dir, dir) {
		t.Errorf("fetched %+v, want version %s in %s", b, local.Version, dir)
	}
	if !strings.HasPrefix(step, "downloading PostgreSQL ") || done != total || total == 0 {
		t.Errorf("progress ended with %q at %d of %d", step, done, total)
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 1 {
		t.Errorf("the cache holds %v, want the unpacked version alone", entries)
	}

	s, err := Start(t.Context(), Options{DataDir: t.TempDir(), BinDir: b.Dir, Throwaway: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Stop() }()
	if got := query[string](t, s.URL("postgres"), "show server_version_num"); !strings.HasPrefix(got, fmt.Sprint(local.Major)) {
		t.Errorf("the fetched server is version %s", got)
	}

	before := requests.Load()
	if _, err := Fetch(t.Context(), opts); err != nil {
		t.Fatal(err)
	}
	if requests.Load() != before {
		t.Error("a second fetch asked the repository again")
	}
}

func TestFetchRefusals(t *testing.T) {
	t.Parallel()
	fake := filepath.Join(t.TempDir(), "postgres")
	if err := os.WriteFile(fake, []byte("#!/bin/sh\nexit 1\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	files := map[string]string{"bin/postgres": fake, "bin/initdb": fake, "bin/pg_ctl": fake}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	good, _ := repository(t, files, sha256Line)
	wrong, _ := repository(t, files, func([]byte) string { return strings.Repeat("0", 64) })
	none, _ := repository(t, files, func([]byte) string { return "" })
	escape, _ := repository(t, map[string]string{"../postgres": fake}, sha256Line)
	gone := httptest.NewServer(nil)
	gone.Close()
	odd := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		jar := jarOf(t, "LICENSE", nil)
		if strings.HasSuffix(r.URL.Path, ".sha256") {
			jar = []byte(sha256Line(jar))
		}
		_, _ = w.Write(jar)
	}))
	t.Cleanup(odd.Close)
	cases := map[string]struct {
		ctx  context.Context
		opts FetchOptions
		want string
	}{
		"a wrong checksum":            {t.Context(), FetchOptions{Repository: wrong.URL + "/mirror"}, "checksums do not match"},
		"no checksum":                 {t.Context(), FetchOptions{Repository: none.URL + "/mirror"}, ".jar.sha256 answers 404"},
		"files outside the directory": {t.Context(), FetchOptions{Repository: escape.URL + "/mirror"}, "path escapes from parent"},
		"an archive without them":     {t.Context(), FetchOptions{Repository: odd.URL}, "holds no .txz file"},
		"what does not run here":      {t.Context(), FetchOptions{Repository: good.URL + "/mirror"}, "does not run on this machine"},
		"a repository without it":     {t.Context(), FetchOptions{Repository: good.URL + "/elsewhere"}, "404 Not Found"},
		"a repository that is gone":   {t.Context(), FetchOptions{Repository: gone.URL}, "connection refused"},
		"a version never published":   {t.Context(), FetchOptions{Major: 12}, "PostgreSQL 12 cannot be downloaded"},
		"a caller who gave up first":  {cancelled, FetchOptions{Repository: good.URL + "/mirror"}, context.Canceled.Error()},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.opts.CacheDir = t.TempDir()
			if _, err := Fetch(c.ctx, c.opts); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want %q in it", err, c.want)
			}
			if entries, _ := os.ReadDir(c.opts.CacheDir); len(entries) != 0 {
				t.Errorf("left behind: %v", entries)
			}
		})
	}
}

// A download that breaks off, stalls or is cancelled ends with the reason, and none of its files stay.
func TestFetchBrokenOff(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		then func(w http.ResponseWriter, r *http.Request) // after half of the archive
		opts func(cancel context.CancelFunc) FetchOptions
		want string
	}{
		"the repository sends no more": {
			then: func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
			opts: func(context.CancelFunc) FetchOptions { return FetchOptions{stallTimeout: 100 * time.Millisecond} },
			want: "sends nothing for 100ms",
		},
		"the connection is cut": {
			then: func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
			opts: func(context.CancelFunc) FetchOptions { return FetchOptions{} },
			want: io.ErrUnexpectedEOF.Error(),
		},
		"the caller gives up": {
			then: func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
			opts: func(cancel context.CancelFunc) FetchOptions {
				return FetchOptions{Progress: func(string, int64, int64) { cancel() }}
			},
			want: context.Canceled.Error(),
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			jar := bytes.Repeat([]byte("x"), 1<<20)
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if strings.HasSuffix(r.URL.Path, ".sha256") {
					_, _ = io.WriteString(w, sha256Line(jar))
					return
				}
				w.Header().Set("Content-Length", fmt.Sprint(len(jar)))
				_, _ = w.Write(jar[:len(jar)/2])
				_ = http.NewResponseController(w).Flush()
				c.then(w, r)
			}))
			t.Cleanup(server.Close)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			opts := c.opts(cancel)
			opts.Repository, opts.CacheDir = server.URL, t.TempDir()
			if _, err := Fetch(ctx, opts); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want %q in it", err, c.want)
			}
			if entries, _ := os.ReadDir(opts.CacheDir); len(entries) != 0 {
				t.Errorf("left behind: %v", entries)
			}
		})
	}
}

// xzStored wraps data as an .xz file without compressing it (LZMA2 has stored chunks), which
// spares a dependency that only this test would use.
func xzStored(data []byte) []byte {
	withCRC := func(b []byte) []byte { return binary.LittleEndian.AppendUint32(b, crc32.ChecksumIEEE(b)) }
	flags := []byte{0, 0} // no check after the block

	out := append([]byte{0xfd, '7', 'z', 'X', 'Z', 0}, withCRC(flags)[:2]...)
	out = binary.LittleEndian.AppendUint32(out, crc32.ChecksumIEEE(flags))
	// Block header: 12 bytes in all, one filter, LZMA2 with a small dictionary.
	header := withCRC([]byte{2, 0, 0x21, 1, 0, 0, 0, 0})
	out = append(out, header...)
	size := len(header)
	for rest := data; len(rest) > 0; {
		chunk := rest[:min(len(rest), 1<<16)]
		control := byte(2) // stored, dictionary kept
		if len(rest) == len(data) {
			control = 1 // stored, dictionary reset
		}
		out = append(out, control, byte((len(chunk)-1)>>8), byte(len(chunk)-1))
		out = append(out, chunk...)
		size += 3 + len(chunk)
		rest = rest[len(chunk):]
	}
	out = append(out, 0)
	size++
	for padded := size; padded%4 != 0; padded++ {
		out = append(out, 0)
	}
	index := []byte{0, 1}
	index = binary.AppendUvarint(index, uint64(size))
	index = binary.AppendUvarint(index, uint64(len(data)))
	for len(index)%4 != 0 {
		index = append(index, 0)
	}
	index = withCRC(index)
	out = append(out, index...)
	footer := binary.LittleEndian.AppendUint32(nil, uint32(len(index)/4-1))
	footer = append(footer, flags...)
	out = binary.LittleEndian.AppendUint32(out, crc32.ChecksumIEEE(footer))
	out = append(out, footer...)
	return append(out, 'Y', 'Z')
}
