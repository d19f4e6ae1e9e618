//go:build unix

package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"
)

// poster sends a JSON body and returns the answer's, which is valid until the next call. An answer other than 2xx is an error.
type poster interface {
	post(path string, body []byte) ([]byte, error)
	close()
}

// httpClient connects as one of two kinds: lean, or as programs in Go are usually written.
func httpClient(ctx context.Context, kind, address string) (poster, error) {
	if kind == "lean" {
		return dial(ctx, address)
	}
	return &usualClient{
		address: "http://" + address,
		client:  http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1, MaxConnsPerHost: 1, DisableCompression: true}},
	}, nil
}

// usualClient is the client of Go's library, with one kept-alive connection.
type usualClient struct {
	address string
	client  http.Client
}

func (c *usualClient) post(path string, body []byte) ([]byte, error) {
	response, err := c.client.Post(c.address+path, "application/json", bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("send a request: %w", err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, fmt.Errorf("receive an answer: %w", err)
	}
	if response.StatusCode < 200 || response.StatusCode > 299 {
		return nil, fmt.Errorf("the server answered %d: %s", response.StatusCode, answer)
	}
	return answer, nil
}

func (c *usualClient) close() { c.client.CloseIdleConnections() }

// client is one kept-alive connection that speaks just enough HTTP/1.1. It is written by hand, so that what is
// measured is the server: Go's own client costs more than many a handler.
type client struct {
	conn   net.Conn
	in     *bufio.Reader
	out    []byte
	answer []byte
}

func dial(ctx context.Context, address string) (*client, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("connect to the server: %w", err)
	}
	return &client{conn: conn, in: bufio.NewReaderSize(conn, 64<<10)}, nil
}

func (c *client) close() { _ = c.conn.Close() }

func (c *client) post(path string, body []byte) ([]byte, error) {
	b := append(c.out[:0], "POST "...)
	b = append(b, path...)
	b = append(b, " HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: "...)
	b = strconv.AppendInt(b, int64(len(body)), 10)
	b = append(b, "\r\n\r\n"...)
	c.out = append(b, body...)
	if _, err := c.conn.Write(c.out); err != nil {
		return nil, fmt.Errorf("send a request: %w", err)
	}
	return c.receive()
}

func (c *client) receive() ([]byte, error) {
	status, length, chunked := 0, -1, false
	for first := true; ; first = false {
		line, err := c.in.ReadSlice('\n')
		if err != nil {
			return nil, fmt.Errorf("receive an answer: %w", err)
		}
		line = bytes.TrimRight(line, "\r\n")
		if first {
			if len(line) < 12 {
				return nil, fmt.Errorf("the answer begins with %q", line)
			}
			if status, err = strconv.Atoi(string(line[9:12])); err != nil {
				return nil, fmt.Errorf("the answer begins with %q", line)
			}
			continue
		}
		if len(line) == 0 {
			break
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		switch {
		case bytes.EqualFold(name, []byte("content-length")):
			if length, err = strconv.Atoi(string(bytes.TrimSpace(value))); err != nil {
				return nil, fmt.Errorf("the answer's length is %q", value)
			}
		case bytes.EqualFold(name, []byte("transfer-encoding")):
			chunked = true
		}
	}
	if chunked || length < 0 {
		return nil, errors.New("the answer does not say how long it is")
	}
	if cap(c.answer) < length {
		c.answer = make([]byte, length)
	}
	c.answer = c.answer[:length]
	if _, err := io.ReadFull(c.in, c.answer); err != nil {
		return nil, fmt.Errorf("receive an answer: %w", err)
	}
	if status < 200 || status > 299 {
		return nil, fmt.Errorf("the server answered %d: %s", status, c.answer)
	}
	return c.answer, nil
}

// httpWorker fetches and acknowledges over HTTP.
type httpWorker struct {
	poster
	lean    bool
	tenants map[string]int32
	wait    time.Duration
	body    []byte
}

// envelope is what a worker reads of a job.
type envelope struct {
	ID      string                     `json:"id"`
	Type    string                     `json:"type"`
	Queue   string                     `json:"queue"`
	Args    []json.RawMessage          `json:"args"`
	Meta    map[string]json.RawMessage `json:"meta"`
	Attempt int                        `json:"attempt"`
	Lease   string                     `json:"lease"`
}

func (w *httpWorker) fetch(_ context.Context, name string, count int) ([]job, error) {
	b := append(w.body[:0], `{"queues":["`+queue+`"],"worker_id":"`...)
	b = append(append(b, name...), `","count":`...)
	b = strconv.AppendInt(b, int64(count), 10)
	if w.wait > 0 {
		b = strconv.AppendInt(append(b, `,"wait_ms":`...), w.wait.Milliseconds(), 10)
	}
	w.body = append(b, '}')
	answer, err := w.post("/ojs/v1/workers/fetch", w.body)
	if err != nil {
		return nil, err
	}
	if w.lean {
		return readJobs(answer, count, w.tenants)
	}
	var all struct {
		Jobs []envelope `json:"jobs"`
	}
	if err := json.Unmarshal(answer, &all); err != nil {
		return nil, fmt.Errorf("read an answer: %w", err)
	}
	jobs := make([]job, len(all.Jobs))
	for i, e := range all.Jobs {
		if _, err := hexUUID(&jobs[i].id, []byte(e.ID)); err != nil {
			return nil, err
		}
		if _, err := hexUUID(&jobs[i].lease, []byte(e.Lease)); err != nil {
			return nil, err
		}
		if len(e.Args) > 0 {
			jobs[i].args = e.Args[0]
		}
		var tenant string
		if raw := e.Meta["tenant_id"]; raw != nil {
			if err := json.Unmarshal(raw, &tenant); err != nil {
				return nil, fmt.Errorf("read an answer: %w", err)
			}
		}
		jobs[i].tenant = w.tenants[tenant]
	}
	return jobs, nil
}

func (w *httpWorker) ack(_ context.Context, jobs []job) error {
	if len(jobs) == 1 {
		w.body = jobs[0].appendJSON(w.body[:0], "job_id")
		_, err := w.post("/ojs/v1/workers/ack", w.body)
		return err
	}
	b := append(w.body[:0], `{"jobs":[`...)
	for i := range jobs {
		if i > 0 {
			b = append(b, ',')
		}
		b = jobs[i].appendJSON(b, "job_id")
	}
	w.body = append(b, `]}`...)
	answer, err := w.post("/ojs/v1/workers/ack", w.body)
	if err != nil {
		return err
	}
	if !bytes.Contains(answer, []byte(`"failed":0`)) {
		return fmt.Errorf("not all jobs were acknowledged: %s", answer)
	}
	return nil
}

// readJobs picks out of a FETCH's answer what a worker needs, by the names of the members and not by their order. It would be fooled by
// arguments that contain such names, which those of the benchmark do not.
func readJobs(answer []byte, count int, tenants map[string]int32) ([]job, error) {
	jobs := make([]job, 0, count)
	for {
		start := bytes.Index(answer, []byte(`{"specversion"`))
		if start < 0 {
			return jobs, nil
		}
		answer = answer[start+1:]
		one := answer
		if next := bytes.Index(answer, []byte(`{"specversion"`)); next >= 0 {
			one = answer[:next]
		}
		var j job
		if _, err := hexUUID(&j.id, member(one, `"id":"`)); err != nil {
			return nil, err
		}
		if _, err := hexUUID(&j.lease, member(one, `"lease":"`)); err != nil {
			return nil, err
		}
		j.args = member(one, `"args":["`)
		if tenants != nil {
			j.tenant = tenants[string(member(one, `"tenant_id":"`))]
		}
		jobs = append(jobs, j)
	}
}

// member is the text from a key on to the next quote.
func member(object []byte, key string) []byte {
	at := bytes.Index(object, []byte(key))
	if at < 0 {
		return nil
	}
	value := object[at+len(key):]
	return value[:max(0, bytes.IndexByte(value, '"'))]
}

func hexUUID(id *[16]byte, text []byte) (int, error) {
	if len(text) != 36 {
		return 0, fmt.Errorf("%q is no id", text)
	}
	var digits [32]byte
	n := 0
	for _, part := range [...][]byte{text[0:8], text[9:13], text[14:18], text[19:23], text[24:36]} {
		n += copy(digits[n:], part)
	}
	return hex.Decode(id[:], digits[:])
}
