package soak

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// entry is one line of a ledger. A client appends a line before a request, with what it is about to do,
// and another one after it, with the answer, each with one write. So the ledger of a killed client tells
// which outcomes are unknown. Times are those of the machine's clock, also if the client's is wrong.
type entry struct {
	At      time.Time `json:"at"`
	What    what      `json:"what"`
	Client  string    `json:"client,omitempty"`
	IDs     []string  `json:"ids,omitempty"`
	Tenant  string    `json:"tenant,omitempty"`
	Queue   string    `json:"queue,omitempty"`
	Pool    string    `json:"pool,omitempty"` // of fetched and barred: the pool of the worker; empty: not known
	Lease   string    `json:"lease,omitempty"`
	Attempt int       `json:"attempt,omitempty"`
	How     string    `json:"how,omitempty"`    // of finishing: one of the finish constants
	Status  int       `json:"status,omitempty"` // of an answer; 0: none
	Asked   int       `json:"asked,omitempty"`  // how many times the question was put before that answer
	Sent    time.Time `json:"sent,omitzero"`    // of fetched, dropped and barred: when the question was put
	Until   time.Time `json:"until,omitzero"`   // the job is certainly the worker's until then
	Key     string    `json:"key,omitempty"`    // of an enqueue under an Idempotency-Key, whose jobs have ids of the server's
	Jobs    int       `json:"jobs,omitempty"`   // how many those are
	Change  *change   `json:"change,omitempty"` // of rules and ruled
	Text    string    `json:"text,omitempty"`
}

type what string

const (
	enqueues  what = "enqueues"  // is about to do so
	enqueued  what = "enqueued"  // the server has acknowledged it
	withdrew  what = "withdrew"  // it certainly did not happen
	cancels   what = "cancels"   // is about to do so
	cancelled what = "cancelled" // with the status of the answer
	activates what = "activates" // is about to do so
	fetched_  what = "fetched"   // one job
	extended  what = "extended"  // by a heartbeat
	dropped   what = "dropped"   // a heartbeat named the job, and the answer did not
	finishes  what = "finishes"  // is about to ACK or NACK
	finished  what = "finished"  // with the status of the answer
	replays   what = "replays"   // is about to have dead letters retried
	rules     what = "rules"     // is about to change a limit or a pause
	ruled     what = "ruled"     // the change is confirmed
	barred    what = "barred"    // a FETCH of a tenant's own login was refused, because its pool has a concurrency
	failed    what = "failed"    // a request was answered 503, or not at all
	broke     what = "broke"     // a session of SQL ended by an error
	hung      what = "hung"      // there was no answer for longer than any fault lasts
	wrong     what = "wrong"     // the client saw a violation
)

// prober is the name of the client that sends requests at the end of a round.
const prober = "probe"

// retryPolicy is the retry policy of all jobs.
const retryPolicy = `{"max_attempts": 3, "backoff_strategy": "constant", "initial_interval": "PT0.1S", "jitter": "none",
	"on_exhaustion": "dead_letter"}`

// Ways to finish an attempt.
const (
	ack     = "ack"
	fail    = "fail"
	discard = "discard" // a NACK whose code ends the job
	requeue = "requeue"
)

type book struct {
	mu     sync.Mutex
	file   *os.File
	client string
}

func openBook(path, client string) (*book, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	return &book{file: file, client: client}, nil
}

func (b *book) write(e entry) {
	e.At, e.Client = time.Now(), b.client
	line, err := json.Marshal(e)
	if err != nil {
		panic(err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, err := b.file.Write(append(line, '\n')); err != nil {
		panic(err)
	}
}

func (b *book) wrong(format string, args ...any) {
	b.write(entry{What: wrong, Text: fmt.Sprintf(format, args...)})
}

// readBooks reads all ledgers of a directory. The last line of a killed client may be cut off. The client
// had then not begun what it wanted to announce, or does not know the answer.
func readBooks(t testing.TB, dir string) []entry {
	t.Helper()
	var all []entry
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		defer file.Close()
		lines := bufio.NewScanner(file)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			var e entry
			if json.Unmarshal(lines.Bytes(), &e) == nil {
				all = append(all, e)
			}
		}
		return lines.Err()
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}
