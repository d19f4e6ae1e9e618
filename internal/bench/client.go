//go:build unix

package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/google/uuid"
)

// httpClient posts JSON to a server by Go's own client, with one connection that is kept alive.
type httpClient struct {
	address string
	key     string // an API key; empty: none
	client  http.Client
}

// newHTTPClient returns a client of the server at an address.
func newHTTPClient(address string) *httpClient {
	return &httpClient{
		address: "http://" + address,
		client:  http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1, MaxConnsPerHost: 1, DisableCompression: true}},
	}
}

// post returns the body of the answer. An answer other than 2xx is an error.
func (c *httpClient) post(ctx context.Context, path string, body []byte) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.address+path, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("make a request: %w", err)
	}
	request.Header.Set("Content-Type", "application/json")
	if c.key != "" {
		request.Header.Set("Authorization", "Bearer "+c.key)
	}
	response, err := c.client.Do(request)
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

func (c *httpClient) close() { c.client.CloseIdleConnections() }

// httpWorker fetches and acknowledges over HTTP.
type httpWorker struct {
	*httpClient
	tenants map[string]int32
	wait    time.Duration
	body    []byte
}

// envelope is what a worker reads of a job.
type envelope struct {
	ID      uuid.UUID                  `json:"id"`
	Type    string                     `json:"type"`
	Queue   string                     `json:"queue"`
	Args    []json.RawMessage          `json:"args"`
	Meta    map[string]json.RawMessage `json:"meta"`
	Attempt int                        `json:"attempt"`
	Lease   uuid.UUID                  `json:"lease"`
}

func (w *httpWorker) fetch(ctx context.Context, name string, count int) ([]job, error) {
	b := append(w.body[:0], `{"queues":["`+queue+`"],"worker_id":"`...)
	b = append(append(b, name...), `","count":`...)
	b = strconv.AppendInt(b, int64(count), 10)
	if w.wait > 0 {
		b = strconv.AppendInt(append(b, `,"wait_ms":`...), w.wait.Milliseconds(), 10)
	}
	w.body = append(b, '}')
	answer, err := w.post(ctx, "/ojs/v1/workers/fetch", w.body)
	if err != nil {
		return nil, err
	}
	var all struct {
		Jobs []envelope `json:"jobs"`
	}
	if err := json.Unmarshal(answer, &all); err != nil {
		return nil, fmt.Errorf("read an answer: %w", err)
	}
	jobs := make([]job, len(all.Jobs))
	for i, e := range all.Jobs {
		jobs[i] = job{id: e.ID, lease: e.Lease}
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

func (w *httpWorker) ack(ctx context.Context, jobs []job) error {
	if len(jobs) == 1 {
		w.body = jobs[0].appendJSON(w.body[:0], "job_id")
		_, err := w.post(ctx, "/ojs/v1/workers/ack", w.body)
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
	answer, err := w.post(ctx, "/ojs/v1/workers/ack", w.body)
	if err != nil {
		return err
	}
	if !bytes.Contains(answer, []byte(`"failed":0`)) {
		return fmt.Errorf("not all jobs were acknowledged: %s", answer)
	}
	return nil
}
