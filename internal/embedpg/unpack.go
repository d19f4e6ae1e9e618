//go:build unix

package embedpg

import (
	"archive/tar"
	"archive/zip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/xi2/xz"
)

// unpackJar unpacks the .txz file that a jar of zonky holds into a directory.
func unpackJar(ctx context.Context, jar, dir string) error {
	files, err := zip.OpenReader(jar)
	if err != nil {
		return fmt.Errorf("open the archive: %w", err)
	}
	defer files.Close()
	for _, file := range files.File {
		if !strings.HasSuffix(file.Name, ".txz") {
			continue
		}
		compressed, err := file.Open()
		if err != nil {
			return fmt.Errorf("open %s in the archive: %w", file.Name, err)
		}
		defer compressed.Close()
		plain, err := xz.NewReader(compressed, 0)
		if err != nil {
			return fmt.Errorf("decompress %s: %w", file.Name, err)
		}
		return Untar(ctx, plain, dir)
	}
	return errors.New("the archive holds no .txz file")
}

// Untar unpacks the files, directories and symbolic links of a tar stream into a directory, which it
// makes if it is absent. It writes nothing outside of this directory, whatever names the stream holds.
func Untar(ctx context.Context, from io.Reader, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for stream := tar.NewReader(from); ; {
		header, err := stream.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err := errors.Join(err, ctx.Err()); err != nil {
			return err
		}
		if err := unpackEntry(root, header, stream); err != nil {
			return fmt.Errorf("unpack %s: %w", header.Name, err)
		}
	}
}

// unpackEntry unpacks one entry of a tar stream. It skips kinds that a PostgreSQL has no use for, such
// as devices.
func unpackEntry(root *os.Root, header *tar.Header, content io.Reader) error {
	name := path.Clean(header.Name)
	if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	switch header.Typeflag {
	case tar.TypeDir:
		return root.MkdirAll(name, 0o755)
	case tar.TypeSymlink:
		return root.Symlink(header.Linkname, name)
	case tar.TypeReg:
		file, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, header.FileInfo().Mode().Perm())
		if err != nil {
			return err
		}
		_, err = io.Copy(file, content)
		return errors.Join(err, file.Close())
	}
	return nil
}

// readableByAll lets every user read the files and run the programs, whatever the umask: the server
// may run as another user.
func readableByAll(root string) error {
	return filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.Type()&fs.ModeSymlink != 0 {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		mode := info.Mode().Perm() | 0o444
		if entry.IsDir() || mode&0o100 != 0 {
			mode |= 0o111
		}
		return os.Chmod(path, mode)
	})
}
