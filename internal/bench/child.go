//go:build unix

package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// child is another process of this program. It ends when its standard input does: the kernel closes
// that when this process ends, even by SIGKILL, so that no busy process is left.
type child struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader

	forget func() bool // that the context may end
}

// child starts a child that runs RunChild for a kind.
func (e *Env) child(ctx context.Context, kind string) (*child, error) {
	if len(e.self) == 0 {
		return nil, errors.New("this benchmark starts processes of its own, and was not told how")
	}
	c := &child{cmd: exec.Command(e.self[0], append(e.self[1:], kind)...)}
	// Ctrl-C in the terminal reaches this process only, which stops the child when it needs it no more.
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.cmd.Stderr = os.Stderr
	out, err := c.cmd.StdoutPipe()
	if err == nil {
		c.out = bufio.NewReader(out)
		c.in, err = c.cmd.StdinPipe()
	}
	if err == nil {
		err = c.cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("start another process of this program: %w", err)
	}
	// The child ends without input. Otherwise hear would wait for its answer after ctx has ended.
	c.forget = context.AfterFunc(ctx, func() { _ = c.in.Close() })
	return c, nil
}

// ask sends a line and returns the line that answers it.
func (c *child) ask(line string) (string, error) {
	if _, err := io.WriteString(c.in, line+"\n"); err != nil {
		return "", fmt.Errorf("tell the process %d to %s: %w", c.cmd.Process.Pid, line, err)
	}
	return c.hear()
}

// hear waits for a line of the child that begins with ok, and returns the rest of it. Any other line
// is an error.
func (c *child) hear() (string, error) {
	line, err := c.out.ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("hear from the process %d: %w", c.cmd.Process.Pid, err)
	}
	answer, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "ok")
	if !ok {
		return "", fmt.Errorf("the process %d says: %s", c.cmd.Process.Pid, strings.TrimSpace(line))
	}
	return strings.TrimSpace(answer), nil
}

// stop closes the child's input and waits for its end. It kills a child that does not end.
func (c *child) stop() error {
	c.forget()
	_ = c.in.Close()
	timer := time.AfterFunc(20*time.Second, func() { _ = c.cmd.Process.Kill() })
	defer timer.Stop()
	if err := c.cmd.Wait(); err != nil {
		return fmt.Errorf("another process of this program: %w", err)
	}
	return nil
}

// RunChild is the program of the processes that benchmarks start. kind is "server", or "hog" for a
// busy process. It returns when its input ends, and writes an error to out, where the parent reads it.
func RunChild(ctx context.Context, kind string, in io.Reader, out io.Writer, log *slog.Logger) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	lines := make(chan string)
	go func() {
		defer cancel()
		for scan := bufio.NewScanner(in); scan.Scan(); {
			select {
			case lines <- scan.Text():
			case <-ctx.Done():
				return
			}
		}
	}()
	var err error
	switch kind {
	case "hog":
		err = hog(ctx, out)
	case "server":
		err = serveParent(ctx, lines, out, log)
	default:
		err = fmt.Errorf("there is no process of the kind %q", kind)
	}
	if err != nil && ctx.Err() == nil {
		fmt.Fprintln(out, strings.ReplaceAll(err.Error(), "\n", " "))
		return err
	}
	return nil
}

// hog keeps a processor busy until ctx ends.
func hog(ctx context.Context, out io.Writer) error {
	if _, err := fmt.Fprintln(out, "ok"); err != nil {
		return fmt.Errorf("answer: %w", err)
	}
	for n := uint64(1); ; n = n*6364136223846793005 + 1442695040888963407 {
		// It looks at the context once in a million rounds only, because a look takes a lock.
		if n>>44 == 0 && ctx.Err() != nil {
			return nil
		}
	}
}

// hogs starts busy processes, which compete for the processors until stop is called. It returns when
// all of them compute.
func (e *Env) hogs(ctx context.Context, count int) (stop func(), err error) {
	var all []*child
	stop = func() {
		for _, c := range all {
			// They have nothing to clean up, and to wait until they look at their input would take time.
			_ = c.cmd.Process.Kill()
			_ = c.stop()
		}
		all = nil
	}
	for range count {
		c, err := e.child(ctx, "hog")
		if err != nil {
			stop()
			return nil, err
		}
		all = append(all, c)
	}
	for _, c := range all {
		if _, err := c.hear(); err != nil {
			stop()
			return nil, err
		}
	}
	return stop, nil
}

// server runs what `ojs-pg serve` runs: in this process, or in a child, where the processor time of the
// server can be told from that of its clients.
type server struct {
	engine  *engine // nil: it runs in the child
	child   *child
	address string // of HTTP; empty: none
}

// serverOptions configure a server in a child. The child reads them from its standard input and not
// from arguments, which every user of the machine sees: the URL holds a password.
type serverOptions struct {
	URL      string
	Role     string
	MaxConns int
	Canned   int // bytes of args of jobs that take the database's place; 0: the database
	HTTP     bool
	Keys     bool // whether HTTP asks for API keys
}

// apart starts a server in a child.
func (d *database) apart(ctx context.Context, opts serverOptions) (*server, error) {
	c, err := d.env.child(ctx, "server")
	if err != nil {
		return nil, err
	}
	opts.URL, opts.Role = d.service, d.role
	raw, err := json.Marshal(opts)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("write down what the server is to do: %w", err), c.stop())
	}
	s := &server{child: c}
	if s.address, err = c.ask(string(raw)); err != nil {
		_ = c.stop()
		return nil, errors.Join(fmt.Errorf("start a server: %w", err), ctx.Err())
	}
	return s, nil
}

// serveParent runs a server for the process that started this one. The first line holds its
// serverOptions; each further line starts or stops the clock.
func serveParent(ctx context.Context, lines <-chan string, out io.Writer, log *slog.Logger) (err error) {
	next := func() (string, bool) {
		select {
		case line := <-lines:
			return line, true
		case <-ctx.Done():
			return "", false
		}
	}
	line, more := next()
	if !more {
		return nil
	}
	var opts serverOptions
	if err := json.Unmarshal([]byte(line), &opts); err != nil {
		return fmt.Errorf("read what the server is to do: %w", err)
	}
	d := &database{env: &Env{log: log}, service: opts.URL, role: opts.Role}
	e, err := d.engine(ctx, opts.MaxConns, cannedOf(opts.Canned))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.stop()) }()
	if opts.HTTP {
		if err := e.serve(ctx, opts.Keys); err != nil {
			return err
		}
	}
	rest := func() {}
	defer func() { rest() }()
	for answer := "ok " + e.address; ; answer = "ok" {
		if _, err := fmt.Fprintln(out, answer); err != nil {
			return fmt.Errorf("answer: %w", err)
		}
		if line, more = next(); !more {
			return nil
		}
		rest()
		rest = func() {}
		if line == "clock" {
			rest = e.clock(ctx)
		}
	}
}

// clock starts the server's clock, which runs until stop is called.
func (s *server) clock(ctx context.Context) (stop func() error, err error) {
	if s.engine != nil {
		rest := s.engine.clock(ctx)
		return func() error { rest(); return nil }, nil
	}
	if _, err := s.child.ask("clock"); err != nil {
		return nil, err
	}
	return func() error { _, err := s.child.ask("rest"); return err }, nil
}

// stop stops the server, and with it the child that it runs in.
func (s *server) stop() error {
	if s.engine != nil {
		return s.engine.stop()
	}
	return s.child.stop()
}
