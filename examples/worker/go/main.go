// Command go is a worker: go run ./examples/worker/go. It needs nothing but the standard library.
package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	wait  = 5 * time.Second // how long a FETCH waits for a job, and an idle worker goes on after it was told to stop
	slots = 4               // jobs at a time
)

type job struct {
	ID    string            `json:"id"`
	Type  string            `json:"type"`
	Args  []json.RawMessage `json:"args"`
	Lease string            `json:"lease"`
}

// permanent is a failure that another attempt would only repeat.
type permanent struct{ kind, message string }

func (p permanent) Error() string { return p.message }

type body = map[string]any

// handlers end when ctx does: the job is no longer this worker's.
var handlers = map[string]func(ctx context.Context, j job) (any, error){
	"greet": func(_ context.Context, j job) (any, error) {
		var name string
		err := argument(j, &name)
		return body{"greeting": "hello, " + name}, err
	},
	"nap": func(ctx context.Context, j job) (any, error) {
		var seconds float64
		if err := argument(j, &seconds); err != nil {
			return nil, err
		}
		select {
		case <-time.After(time.Duration(seconds * float64(time.Second))):
			return body{"slept": true}, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	},
	"charge": func(_ context.Context, j job) (any, error) {
		var amount float64
		if err := argument(j, &amount); err != nil {
			return nil, err
		}
		if amount <= 0 {
			return nil, permanent{"invalid_amount", "the amount must be positive"}
		}
		// With the job's id as its key, a payment is made once, however often the job runs.
		return body{"charged": amount, "key": j.ID}, nil
	},
	// The producers of the examples enqueue these.
	"receipt.send": send, "receipt.remind": send, "welcome.send": send,
}

func send(_ context.Context, j job) (any, error) { return body{"sent": j.Args}, nil }

// argument reads the only one.
func argument(j job, to any) error {
	if len(j.Args) != 1 {
		return permanent{"invalid_args", "one argument is expected"}
	}
	return json.Unmarshal(j.Args[0], to)
}

type worker struct {
	base, key, id string
	queues        []string
	lease         time.Duration
	stop          func() // fetch no more

	mu      sync.Mutex
	running map[string]context.CancelFunc // by the job's id: says that it was lost
}

func main() {
	log.SetFlags(0)
	lease, err := strconv.Atoi(cmp.Or(os.Getenv("OJS_LEASE_MS"), "30000"))
	if err != nil {
		log.Fatal(err)
	}
	host, _ := os.Hostname()
	w := &worker{
		base: cmp.Or(os.Getenv("OJS_URL"), "http://127.0.0.1:8080") + "/ojs/v1/workers/", key: os.Getenv("OJS_API_KEY"),
		id: fmt.Sprintf("go-%s-%d", host, os.Getpid()), queues: strings.Split(cmp.Or(os.Getenv("OJS_QUEUES"), "default"), ","),
		lease: time.Duration(lease) * time.Millisecond, running: map[string]context.CancelFunc{},
	}
	if err := w.run(host); err != nil {
		log.Fatal(err)
	}
}

func (w *worker) run(host string) error {
	stopping, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	w.stop = stop
	var registered struct {
		Interval float64 `json:"heartbeat_interval"`
	}
	about := body{"queues": w.queues, "concurrency": slots, "hostname": host, "pid": os.Getpid()}
	if err := w.call("register", about, &registered, 60); err != nil {
		return err
	}
	log.Printf("serving %s as %s at %s", strings.Join(w.queues, ","), w.id, w.base)
	stopped, end := context.WithCancel(context.Background())
	var beats, work sync.WaitGroup
	interval := min(time.Duration(registered.Interval*float64(time.Second)), w.lease/2)
	beats.Go(func() { w.heartbeats(stopping, stopped, interval) })
	for range slots {
		work.Go(func() { w.slot(stopping) })
	}
	work.Wait()
	end()
	beats.Wait()
	return w.call("deregister", body{}, nil, 3)
}

// slot fetches a job, runs it, and fetches the next. A FETCH under way is never cut off: its answer may hold a job.
func (w *worker) slot(stopping context.Context) {
	for stopping.Err() == nil {
		var answer struct{ Jobs []job }
		request := body{"queues": w.queues, "visibility_timeout_ms": w.lease.Milliseconds(), "wait_ms": wait.Milliseconds()}
		if err := w.call("fetch", request, &answer, 1); err != nil {
			log.Print(err)
			sleep(stopping, time.Second)
		}
		for _, j := range answer.Jobs {
			w.work(j)
		}
	}
}

func (w *worker) work(j job) {
	ctx, lost := context.WithCancel(context.Background())
	defer lost()
	w.mu.Lock()
	w.running[j.ID] = lost
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		delete(w.running, j.ID)
		w.mu.Unlock()
	}()
	verb, end := "ack", body{"job_id": j.ID, "lease": j.Lease}
	result, err := handle(ctx, j)
	if end["result"] = result; err != nil {
		verb, end["error"] = "nack", describe(err)
		delete(end, "result")
	}
	if ctx.Err() != nil {
		log.Printf("lost %s %s", j.Type, j.ID)
		return
	}
	failed := err
	if err := w.call(verb, end, nil, 10); err != nil {
		log.Print(err) // 409: the job was taken back; another worker has it
	} else if failed != nil {
		log.Printf("failed %s %s: %v", j.Type, j.ID, failed)
	} else {
		log.Printf("done %s %s", j.Type, j.ID)
	}
}

// handle makes an error of a panic, which would end the other jobs, too.
func handle(ctx context.Context, j job) (result any, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	handler, ok := handlers[j.Type]
	if !ok {
		return nil, fmt.Errorf("no handler for %s", j.Type)
	}
	return handler(ctx, j)
}

func describe(err error) body {
	var p permanent
	if errors.As(err, &p) {
		return body{"type": p.kind, "message": p.message, "retryable": false}
	}
	return body{"type": fmt.Sprintf("%T", err), "message": err.Error()}
}

// heartbeats keep the jobs that run, and the worker itself while there is none.
func (w *worker) heartbeats(stopping, stopped context.Context, interval time.Duration) {
	for sleep(stopped, interval); stopped.Err() == nil; sleep(stopped, interval) {
		w.mu.Lock()
		jobs := maps.Clone(w.running)
		w.mu.Unlock()
		state := "running"
		if stopping.Err() != nil {
			state = "drain"
		}
		var answer struct {
			State    string   `json:"state"`
			Extended []string `json:"jobs_extended"`
		}
		request := body{
			"active_jobs": slices.AppendSeq([]string{}, maps.Keys(jobs)), "visibility_timeout_ms": w.lease.Milliseconds(), "state": state,
		}
		if err := w.call("heartbeat", request, &answer, 1); err != nil {
			log.Print(err) // the next one comes soon
			continue
		}
		for id, lost := range jobs {
			if !slices.Contains(answer.Extended, id) {
				lost()
			}
		}
		if answer.State == "terminate" {
			w.stop()
		}
	}
}

// call posts, and asks again while the server is away or has no room, which changes nothing about ACK and NACK with a lease.
func (w *worker) call(what string, b body, answer any, tries int) error {
	b["worker_id"] = w.id
	data, err := json.Marshal(b)
	if err != nil {
		return err
	}
	for {
		again, pause, err := w.post(what, data, answer)
		if tries--; err == nil || !again || tries <= 0 {
			return err
		}
		time.Sleep(pause)
	}
}

var client = http.Client{Timeout: wait + 30*time.Second}

func (w *worker) post(what string, data []byte, to any) (again bool, pause time.Duration, err error) {
	request, err := http.NewRequest(http.MethodPost, w.base+what, bytes.NewReader(data))
	if err != nil {
		return false, 0, err
	}
	request.Header.Set("Content-Type", "application/json")
	if w.key != "" {
		request.Header.Set("Authorization", "Bearer "+w.key)
	}
	answer, err := client.Do(request)
	if err != nil {
		return true, time.Second, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	switch {
	case err != nil:
		return true, time.Second, err
	case answer.StatusCode == http.StatusOK && to == nil:
		return false, 0, nil
	case answer.StatusCode == http.StatusOK:
		return false, 0, json.Unmarshal(text, to)
	}
	again = answer.StatusCode == http.StatusTooManyRequests || answer.StatusCode == http.StatusServiceUnavailable
	seconds, _ := strconv.Atoi(cmp.Or(answer.Header.Get("Retry-After"), "1"))
	return again, time.Duration(seconds) * time.Second, fmt.Errorf("%s: %s %s", what, answer.Status, text)
}

// sleep returns when the time is over, or ctx is.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
