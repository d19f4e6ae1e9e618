//go:build linux

package soak

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	leaseTime = time.Second // the shortest there is
	longLease = 10 * time.Minute
	silence   = 1500 * time.Millisecond // after which a worker that sent heartbeats is dead
	patience  = 10 * time.Second        // of clients; what a fault holds up goes on long before
	sessions  = 5 * time.Second         // of SQL last about as long
)

// campaignQueues are the queues of all jobs. Only workers of one pool get jobs of the last one.
var campaignQueues = []string{"mail", "work", "vault"}

// orders holds what a client process has to do. It gets them in its environment.
type orders struct {
	Role     string        `json:"role"` // one of the roles
	Name     string        `json:"name"`
	Ledger   string        `json:"ledger"`
	Seed     uint64        `json:"seed"`
	Servers  []string      `json:"servers"`
	Database string        `json:"database"`
	Tenants  []string      `json:"tenants"` // of producers' jobs; of a worker in SQL: whose login it has, if a tenant's
	For      time.Duration `json:"for"`     // of producers and the operator
	Idle     time.Duration `json:"idle"`    // of the operator, at first
	Skew     time.Duration `json:"skew"`    // by how much its clock is wrong
	Long     bool          `json:"long"`    // a worker with long leases, which heartbeats keep and only its death ends
	Pools    []string      `json:"pools"`   // of workers, who take turns at them
}

const (
	producerHTTP = "producer-http"
	producerSQL  = "producer-sql"
	workerHTTP   = "worker-http"
	workerSQL    = "worker-sql"
	operating    = "operator"
)

func (o orders) command() *exec.Cmd {
	raw, err := json.Marshal(o)
	if err != nil {
		panic(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), clientEnv+"="+string(raw))
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd
}

type client struct {
	orders
	book *book
	http *http.Client

	began time.Time
	calm  atomic.Bool // no more mischief
	stop  context.Context
	next  atomic.Uint64
}

// clientMain runs a client in a process of its own, by its orders. At SIGUSR1 it stops making trouble.
// At SIGTERM it also finishes its jobs and requests, and ends.
func clientMain(raw string) int {
	c := &client{began: time.Now(), http: &http.Client{Timeout: patience, Transport: &http.Transport{MaxIdleConnsPerHost: 32}}}
	err := json.Unmarshal([]byte(raw), &c.orders)
	if err == nil {
		c.book, err = openBook(c.Ledger, c.Name)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "client:", err)
		return 1
	}
	stop, cancel := context.WithCancel(context.Background())
	defer cancel()
	c.stop = stop
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGUSR1, syscall.SIGTERM)
	go func() {
		for s := range signals {
			if s == syscall.SIGTERM {
				cancel()
			}
			c.calm.Store(true)
		}
	}()
	var hands sync.WaitGroup
	run := func(n int, f func(*rand.Rand)) {
		for i := range n {
			hands.Go(func() { f(rand.New(rand.NewPCG(c.Seed, uint64(i)))) })
		}
	}
	switch c.Role {
	case producerHTTP:
		producing, enough := context.WithTimeout(stop, c.For)
		defer enough()
		c.stop = producing
		run(3, c.produceByHTTP)
	case producerSQL:
		producing, enough := context.WithTimeout(stop, c.For)
		defer enough()
		c.stop = producing
		run(2, c.produceBySQL)
	case operating:
		producing, enough := context.WithTimeout(stop, c.For)
		defer enough()
		c.stop = producing
		run(2+len(halted), c.operate)
	case workerHTTP:
		run(4, c.work)
	case workerSQL:
		run(1, c.workBySQL)
	}
	hands.Wait()
	return 0
}

// now returns the time by this client's clock, which may be wrong.
func (c *client) now() time.Time { return time.Now().Add(c.Skew) }

// pause sleeps, and ends early when the client has to stop.
func (c *client) pause(d time.Duration) {
	select {
	case <-time.After(d):
	case <-c.stop.Done():
	}
}

type answer struct {
	status   int // 0: no answer
	body     []byte
	replayed bool // as its header says
	err      error
}

// ask sends a request to one of the servers, with a tenant header if tenant is not "".
func (c *client) ask(r *rand.Rand, method, path, tenant string, body any) answer {
	return c.askAgain(r, method, path, tenant, "", body)
}

// askAgain is ask with an Idempotency-Key, if key is not "".
func (c *client) askAgain(r *rand.Rand, method, path, tenant, key string, body any) answer {
	a := c.send(r, method, path, tenant, key, body)
	if a.unknown() {
		e := entry{What: failed, Status: a.status, Text: fmt.Sprintf("%s %s: %s", method, path, a.body)}
		if a.status == 0 {
			e.Text = a.err.Error()
		}
		c.book.write(e)
		var late net.Error
		if errors.As(a.err, &late) && late.Timeout() {
			e.What = hung
			c.book.write(e)
		}
	}
	return a
}

func (c *client) send(r *rand.Rand, method, path, tenant, key string, body any) answer {
	raw, err := json.Marshal(body)
	if err != nil {
		panic(err)
	}
	req, err := http.NewRequest(method, c.Servers[r.IntN(len(c.Servers))]+path, bytes.NewReader(raw))
	if err != nil {
		panic(err)
	}
	req.Header.Set("Content-Type", "application/openjobspec+json")
	if tenant != "" {
		req.Header.Set("X-OJS-Tenant", tenant)
	}
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	res, err := c.http.Do(req)
	if err != nil {
		return answer{err: err}
	}
	defer res.Body.Close()
	got, err := io.ReadAll(res.Body)
	if err != nil {
		return answer{err: fmt.Errorf("%s %s: %d: %w", method, path, res.StatusCode, err)}
	}
	if res.StatusCode == http.StatusServiceUnavailable && res.Header.Get("Retry-After") == "" {
		c.book.wrong("%s %s: 503 without Retry-After: %s", method, path, got)
	}
	if res.StatusCode == http.StatusTooManyRequests && bytes.Contains(got, []byte(`"busy":true`)) {
		// A limit is used up by transactions that a slow database keeps open. For the checker that is a
		// database that is away.
		res.StatusCode = http.StatusServiceUnavailable
	}
	return answer{status: res.StatusCode, body: got, replayed: res.Header.Get("Idempotency-Replayed") == "true"}
}

// unknown reports whether the outcome is not known: there was no answer, or a server answered that its
// database is away.
func (a answer) unknown() bool { return a.status == 0 || a.status == http.StatusServiceUnavailable }

// --- producers ---

type planned struct {
	id, queue, kind string
	http            map[string]any
	at, expires     *time.Time
	pending         bool
}

// plan returns a random job.
func (c *client) plan(r *rand.Rand) planned {
	p := planned{id: newID(), queue: campaignQueues[r.IntN(len(campaignQueues))], kind: "fault.job"}
	if r.IntN(20) == 0 {
		p.kind = poison
	}
	options := map[string]any{
		"queue": p.queue, "priority": 5 * r.IntN(2), "retry": json.RawMessage(retryPolicy), "max_attempts": 3,
	}
	switch n := r.IntN(40); {
	case n < 5:
		// By the producer's clock. If that is wrong, the job is due in an hour, or was due long ago.
		at := c.now().Add(time.Duration(100+r.IntN(1200)) * time.Millisecond)
		p.at, options["scheduled_at"] = &at, at.Format(time.RFC3339Nano)
	case n < 7:
		options["delay_until"] = "+PT1S"
	case n == 7:
		at := c.now().Add(time.Hour)
		p.at, options["scheduled_at"] = &at, at.Format(time.RFC3339Nano)
	case n < 11:
		at := c.now().Add(time.Duration(50+r.IntN(1000)) * time.Millisecond)
		p.expires, options["expires_at"] = &at, at.Format(time.RFC3339Nano)
	case n == 11:
		p.pending, options["pending"] = true, true
	}
	p.http = map[string]any{"type": p.kind, "id": p.id, "args": []any{c.next.Add(1), c.Name}, "options": options}
	return p
}

// poison is the type of jobs that fail until workers are told to stop making trouble.
const poison = "fault.poison"

func (c *client) produceByHTTP(r *rand.Rand) {
	type known struct{ id, tenant string }
	var mine, waiting []known
	for c.stop.Err() == nil {
		tenant := c.Tenants[r.IntN(len(c.Tenants))]
		switch n := r.IntN(20); {
		case n < 2 && len(mine) > 0:
			k := mine[r.IntN(len(mine))]
			c.book.write(entry{What: cancels, IDs: []string{k.id}})
			a := c.ask(r, http.MethodPost, "/ojs/v1/jobs/"+k.id+"/cancel", k.tenant, map[string]any{})
			c.book.write(entry{What: cancelled, IDs: []string{k.id}, Status: a.status, Asked: 1})
			if !a.unknown() && a.status != http.StatusOK && a.status != http.StatusConflict {
				c.book.wrong("cancel of %s: %d: %s", k.id, a.status, a.body)
			}
		case n < 4 && len(waiting) > 0:
			k := waiting[len(waiting)-1]
			waiting = waiting[:len(waiting)-1]
			c.book.write(entry{What: activates, IDs: []string{k.id}})
			a := c.ask(r, http.MethodPost, "/ojs/v1/jobs/"+k.id+"/activate", k.tenant, map[string]any{})
			// A job whose enqueue had no answer may be active, completed or cancelled by now.
			if !a.unknown() && a.status != http.StatusOK && a.status != http.StatusConflict {
				c.book.wrong("activation of %s: %d: %s", k.id, a.status, a.body)
			}
		case n == 4:
			c.replay(r, tenant)
		case n < 7:
			jobs, ids := make([]any, 2+r.IntN(5)), []string{}
			queue := ""
			for i := range jobs {
				p := c.plan(r)
				jobs[i], queue = p.http, p.queue
				ids = append(ids, p.id)
			}
			c.enqueue(r, ids, tenant, queue, "/ojs/v1/jobs/batch", map[string]any{"jobs": jobs})
		case n < 10:
			c.enqueueOnce(r, tenant)
		default:
			p := c.plan(r)
			if c.enqueue(r, []string{p.id}, tenant, p.queue, "/ojs/v1/jobs", p.http) {
				if p.pending {
					waiting = append(waiting, known{p.id, tenant})
				}
				mine = append(mine, known{p.id, tenant})
			}
		}
		c.pause(time.Duration(5+r.IntN(30)) * time.Millisecond)
	}
}

// replay asks a server to retry some dead letters of a tenant, of this round.
func (c *client) replay(r *rand.Rand, tenant string) {
	c.book.write(entry{What: replays})
	a := c.ask(r, http.MethodPost, "/ojs/v1/dead-letter/retry", tenant,
		map[string]any{"limit": 1 + r.IntN(10), "since": c.began.Format(time.RFC3339Nano), "confirm": true})
	if !a.unknown() && a.status != http.StatusOK {
		c.book.wrong("retry of dead letters: %d: %s", a.status, a.body)
	}
}

// enqueue sends an enqueue of jobs with the given ids, again and again until there is an answer.
func (c *client) enqueue(r *rand.Rand, ids []string, tenant, queue, path string, body any) bool {
	c.book.write(entry{What: enqueues, IDs: ids, Tenant: tenant})
	for asked := 1; asked <= 8; asked++ {
		a := c.ask(r, http.MethodPost, path, tenant, body)
		switch {
		case a.status == http.StatusCreated, a.status == http.StatusConflict && asked > 1:
			c.book.write(entry{What: enqueued, IDs: ids, Tenant: tenant, Asked: asked})
			return true
		case !a.unknown():
			c.book.wrong("enqueue of %v in queue %s: %d: %s", ids, queue, a.status, a.body)
			return false
		case c.stop.Err() != nil:
			return false
		}
		c.pause(time.Duration(20+r.IntN(150)) * time.Millisecond)
	}
	return false
}

// enqueueOnce enqueues jobs without ids, so that only the Idempotency-Key keeps a repeated request from
// enqueueing them again. It repeats the request until there is an answer, and sometimes after it.
func (c *client) enqueueOnce(r *rand.Rand, tenant string) {
	key, n := newID(), 1
	if r.IntN(3) == 0 {
		n = 2 + r.IntN(4)
	}
	jobs := make([]any, n)
	for i := range jobs {
		p := c.plan(r)
		delete(p.http, "id")
		p.http["meta"] = map[string]any{"once": key}
		jobs[i] = p.http
	}
	path, body := "/ojs/v1/jobs", jobs[0]
	if n > 1 {
		path, body = "/ojs/v1/jobs/batch", map[string]any{"jobs": jobs}
	}
	c.book.write(entry{What: enqueues, Key: key, Jobs: n, Tenant: tenant})
	var first []byte
	for asked := 1; asked <= 8; asked++ {
		a := c.askAgain(r, http.MethodPost, path, tenant, key, body)
		switch {
		case a.unknown():
		case a.status != http.StatusCreated:
			c.book.wrong("enqueue under key %s: %d: %s", key, a.status, a.body)
			return
		case first != nil:
			if !a.replayed || !bytes.Equal(a.body, first) {
				c.book.wrong("the repeated enqueue under key %s was answered, replayed %t: %s\nand at first: %s", key, a.replayed,
					a.body, first)
			}
			return
		default:
			var got struct {
				Job  held   `json:"job"`
				Jobs []held `json:"jobs"`
			}
			err := json.Unmarshal(a.body, &got)
			if n == 1 {
				got.Jobs = []held{got.Job}
			}
			if err != nil || len(got.Jobs) != n {
				c.book.wrong("enqueue of %d jobs under key %s: %v: %s", n, key, err, a.body)
				return
			}
			first = a.body
			e := entry{What: enqueued, Key: key, Tenant: tenant, Asked: asked}
			for _, j := range got.Jobs {
				e.IDs = append(e.IDs, j.ID)
			}
			c.book.write(e)
			if r.IntN(3) > 0 {
				return
			}
		}
		if c.stop.Err() != nil {
			return
		}
		c.pause(time.Duration(20+r.IntN(150)) * time.Millisecond)
	}
}

// expected reports whether PostgreSQL may answer with an error while it is killed, has no disk or is
// replaced. It writes the error into the ledger: in a round without such a fault it is a violation.
func (c *client) expected(ctx context.Context, err error) bool {
	e := entry{What: broke, Text: err.Error()}
	if ctx.Err() != nil {
		e.What = hung
	}
	c.book.write(e)
	var told *pgconn.PgError
	if !errors.As(err, &told) {
		return true // the connection
	}
	switch told.Code[:2] {
	case "08", "25", "53", "57", "58", "55":
		return true
	}
	return told.Code == "OJ503" || strings.Contains(told.Detail, `"busy": true`)
}

// connect opens a session, and returns the function that closes it and a context for its statements. The
// context ends some time (patience) after a session should, so that the last statement can end.
func (c *client) connect() (context.Context, func(), *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), sessions+patience)
	conn, err := pgx.Connect(ctx, c.Database)
	if err != nil {
		c.expected(ctx, err)
		cancel()
		return nil, nil, nil
	}
	return ctx, func() {
		conn.Close(context.Background())
		cancel()
	}, conn
}

// produceBySQL enqueues jobs in transactions with business rows, which commit, roll back, stay open for
// a while, or lose their connection.
func (c *client) produceBySQL(r *rand.Rand) {
	for c.stop.Err() == nil {
		c.session(r)
		c.pause(time.Duration(20+r.IntN(50)) * time.Millisecond)
	}
}

func (c *client) session(r *rand.Rand) {
	began := time.Now()
	ctx, end, conn := c.connect()
	if conn == nil {
		return
	}
	defer end()
	s := &sqlSession{client: c, ctx: ctx, conn: conn, r: r}
	for c.stop.Err() == nil && time.Since(began) < sessions {
		if r.IntN(8) == 0 && !s.cancel() || !s.enqueue() {
			return
		}
	}
}

// sqlSession is a producer's connection. Its methods return false when the session is over.
type sqlSession struct {
	*client
	ctx  context.Context
	conn *pgx.Conn
	r    *rand.Rand
	mine []string // ids of jobs that it enqueued
}

// failed ends a session after an error. It writes an error that no fault explains into the ledger.
func (s *sqlSession) failed(what string, err error) bool {
	if !s.expected(s.ctx, err) {
		s.book.wrong("%s: %v", what, err)
	}
	return false
}

// cancel cancels one of its jobs, if there are any.
func (s *sqlSession) cancel() bool {
	if len(s.mine) == 0 {
		return true
	}
	id := s.mine[s.r.IntN(len(s.mine))]
	s.book.write(entry{What: cancels, IDs: []string{id}})
	status := http.StatusOK
	if _, err := s.conn.Exec(s.ctx, "select ojs.cancel($1)", id); err != nil {
		var told *pgconn.PgError
		if !errors.As(err, &told) || told.Code != "OJ409" {
			return s.failed("cancel of "+id+" by SQL", err)
		}
		status = http.StatusConflict
	}
	s.book.write(entry{What: cancelled, IDs: []string{id}, Status: status, Asked: 1})
	return true
}

// enqueue enqueues some jobs in a transaction, which ends in one of the ways of produceBySQL, at random.
func (s *sqlSession) enqueue() bool {
	tx, err := s.conn.Begin(s.ctx)
	if err != nil {
		s.expected(s.ctx, err)
		return false
	}
	// The login role of a tenant may name only its own tenant, and need not name it.
	var of *string
	name, ids := s.Tenants[0], []string(nil)
	if len(s.Tenants) > 1 {
		name = s.Tenants[s.r.IntN(len(s.Tenants))]
		of = &name
	}
	for range 1 + s.r.IntN(4) {
		p := s.plan(s.r)
		ids = append(ids, p.id)
		if err := s.insert(tx, p, of); err != nil {
			return s.failed("enqueue by SQL", err)
		}
	}
	switch fate := s.r.IntN(20); {
	case fate == 0:
		// The connection is lost, and with it the transaction.
		s.book.write(entry{What: withdrew, IDs: ids})
		_ = s.conn.PgConn().Conn().Close()
		return false
	case fate <= 2:
		s.book.write(entry{What: withdrew, IDs: ids})
		if err := tx.Rollback(s.ctx); err != nil {
			s.expected(s.ctx, err)
			return false
		}
		return true
	case fate <= 4:
		s.pause(time.Duration(s.r.IntN(800)) * time.Millisecond)
	}
	s.book.write(entry{What: enqueues, IDs: ids, Tenant: name})
	if err := tx.Commit(s.ctx); err != nil {
		return s.failed("commit", err)
	}
	s.book.write(entry{What: enqueued, IDs: ids, Tenant: name, Asked: 1})
	s.mine = append(s.mine, ids...)
	s.pause(time.Duration(5+s.r.IntN(40)) * time.Millisecond)
	return true
}

// insert adds a business row and its job: with ojs.enqueue or, if the login role decides the tenant,
// sometimes with a plain insert.
func (s *sqlSession) insert(tx pgx.Tx, p planned, of *string) error {
	if _, err := tx.Exec(s.ctx, "insert into public.orders (job) values ($1)", p.id); err != nil {
		return err
	}
	if of != nil || s.r.IntN(2) == 0 {
		_, err := tx.Exec(s.ctx, `
			select ojs.enqueue('fault.sql', '[1]', $1, p_id => $2, p_tenant => $3, p_scheduled_at => $4,
				p_expires_at => $5, p_retry => $6, p_max_attempts => 3)`,
			p.queue, p.id, of, p.at, p.expires, retryPolicy)
		return err
	}
	_, err := tx.Exec(s.ctx, `
		insert into ojs.jobs (type, queue, id, scheduled_at, expires_at, retry)
		values ('fault.sql', $1, $2, $3, $4, $5)`, p.queue, p.id, p.at, p.expires, retryPolicy)
	return err
}

// --- workers ---

// workBySQL fetches jobs, and acknowledges each in the transaction in which it writes its result.
// Sometimes it also fetches in that transaction.
func (c *client) workBySQL(r *rand.Rand) {
	for c.stop.Err() == nil {
		c.shift(r)
		c.pause(time.Duration(20+r.IntN(50)) * time.Millisecond)
	}
}

func (c *client) shift(r *rand.Rand) {
	began := time.Now()
	ctx, end, conn := c.connect()
	if conn == nil {
		return
	}
	defer end()
	for c.stop.Err() == nil && time.Since(began) < sessions {
		jobs, err := c.turn(ctx, r, conn)
		if errors.Is(err, errDied) {
			return
		}
		if errors.Is(err, errBarred) {
			c.pause(50 * time.Millisecond)
			continue
		}
		if err != nil {
			if !c.expected(ctx, err) {
				c.book.wrong("work by SQL: %v", err)
			}
			return
		}
		if jobs == 0 {
			c.pause(50 * time.Millisecond)
		}
	}
}

var (
	errDied   = errors.New("died in the middle of it")
	errBarred = errors.New("refused for its pool's concurrency")
)

// turn makes one FETCH and works on its jobs. It returns their number.
func (c *client) turn(ctx context.Context, r *rand.Rand, conn *pgx.Conn) (int, error) {
	calm := c.calm.Load()
	whole := !calm && r.IntN(3) == 0 // all in one transaction
	tx, err := conn.Begin(ctx)
	if err != nil {
		return 0, err
	}
	defer func() {
		if tx != nil { // a later one may not have begun
			_ = tx.Rollback(context.Background())
		}
	}()
	pool, sent := c.Pools[r.IntN(len(c.Pools))], time.Now()
	rows, err := tx.Query(ctx, `
		select id::text, lease::text, attempt, state::text, queue, type, lease_expires_at
		from ojs.fetch($1, $2, $3, $4, p_pool => nullif($5, $6))`,
		campaignQueues, 1+r.IntN(4), c.Name, leaseTime.Milliseconds(), pool, noPool)
	if err != nil {
		return 0, err
	}
	jobs, err := pgx.CollectRows(rows, pgx.RowToStructByPos[held])
	var told *pgconn.PgError
	if len(c.Tenants) > 0 && errors.As(err, &told) && told.Code == "OJ408" {
		c.book.write(entry{What: barred, Tenant: c.Tenants[0], Pool: pool, Sent: sent})
		return 0, errBarred
	}
	if err != nil {
		return 0, err
	}
	if !whole {
		if err := tx.Commit(ctx); err != nil {
			return 0, err
		}
		// Only now does the worker hold the jobs: before the commit the FETCH could have been undone.
		for _, j := range jobs {
			c.book.write(entry{
				What: fetched_, IDs: []string{j.ID}, Queue: j.Queue, Pool: pool, Lease: j.Lease, Attempt: j.Attempt, Sent: sent,
				Until: sent.Add(leaseTime),
			})
		}
		if tx, err = conn.Begin(ctx); err != nil {
			return 0, err
		}
		defer func() { _ = tx.Rollback(context.Background()) }()
	}
	if !calm && r.IntN(10) == 0 {
		// Long enough for dispatch to go on without this transaction or, if that is over, for the leases to
		// end.
		c.pause(time.Duration(r.IntN(1500)) * time.Millisecond)
	} else if whole && len(jobs) > 0 && r.IntN(8) == 0 {
		// With limits, no other decision can be made meanwhile. Other FETCHes wait for a second, and then go on
		// with jobs that have no limit.
		c.pause(time.Duration(1100+r.IntN(500)) * time.Millisecond)
	}
	for _, j := range jobs {
		err := c.finishBySQL(ctx, tx, j, how(j, calm))
		var told *pgconn.PgError
		if errors.As(err, &told) && told.Code == "OJ409" {
			c.book.write(j.finished(how(j, calm), http.StatusConflict))
			if whole {
				c.book.wrong("job %s was fetched in this transaction, and its ack is refused: %v", j.ID, err)
			}
			return len(jobs), nil
		}
		if err != nil {
			return 0, err
		}
	}
	switch fate := r.IntN(20); {
	case calm:
	case fate == 0:
		_ = conn.PgConn().Conn().Close()
		return 0, errDied
	case fate == 1:
		return len(jobs), nil
	}
	if err := tx.Commit(ctx); err != nil {
		return 0, err
	}
	for _, j := range jobs {
		c.book.write(j.finished(how(j, calm), http.StatusOK))
	}
	return len(jobs), nil
}

// how returns the way in which a worker in SQL finishes a job.
func how(j held, calm bool) string {
	if j.Type == poison && !calm {
		return fail
	}
	return ack
}

// finishBySQL ends the attempt in the worker's transaction and, if it succeeded, writes the result of
// the job there.
func (c *client) finishBySQL(ctx context.Context, tx pgx.Tx, j held, how string) error {
	c.book.write(entry{What: finishes, IDs: []string{j.ID}, Lease: j.Lease, Attempt: j.Attempt, How: how})
	if how == fail {
		_, err := tx.Exec(ctx, `select ojs.nack($1, '{"message": "made to fail", "code": "fault"}', $2)`, j.ID, j.Lease)
		return err
	}
	if _, err := tx.Exec(ctx, "insert into public.results (job, lease) values ($1, $2)", j.ID, j.Lease); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, "select ojs.ack($1, $2)", j.ID, j.Lease)
	return err
}

// finished returns the entry about the answer to an ACK or NACK.
func (j held) finished(how string, status int) entry {
	return entry{What: finished, IDs: []string{j.ID}, Lease: j.Lease, Attempt: j.Attempt, How: how, Status: status, Asked: 1}
}

type held struct {
	ID      string    `json:"id"`
	Lease   string    `json:"lease"`
	Attempt int       `json:"attempt"`
	State   string    `json:"state"`
	Queue   string    `json:"queue"`
	Type    string    `json:"type"`
	Until   time.Time `json:"lease_expires_at"`
}

func (c *client) work(r *rand.Rand) {
	w := &worker{name: newID(), pool: c.Pools[int(c.next.Add(1)-1)%len(c.Pools)]}
	if c.Long {
		ended := make(chan struct{})
		defer close(ended)
		random := rand.New(rand.NewPCG(r.Uint64(), 0))
		go func() {
			for {
				select {
				case <-ended:
					return
				case <-time.After(silence / 5):
					c.alive(random, w)
				}
			}
		}()
	}
	for c.stop.Err() == nil {
		if !c.fetch(r, w) {
			// The worker counts as dead. It goes on under a new name, as another worker.
			w.mu.Lock()
			w.name, w.heard, w.lives, w.holds = newID(), time.Time{}, time.Time{}, nil
			w.mu.Unlock()
		}
	}
}

// worker is one worker of a process, with what it knows about its registration and its jobs. mu guards
// the fields, because heartbeats are sent while it works.
type worker struct {
	mu    sync.Mutex
	name  string
	pool  string    // named by each FETCH, or by heartbeats where there are any
	heard time.Time // when the latest heartbeat was sent that was answered
	lives time.Time // since then it has certainly not been taken for dead
	holds []held
	doubt bool // a heartbeat is without an answer, and perhaps still at it
}

// answered notes when a heartbeat was sent and its answer read. If no heartbeat was answered shortly
// before, the registration may have ended, and with it the leases of the worker.
func (w *worker) answered(sent, read time.Time) {
	if !read.Before(w.heard.Add(silence)) {
		w.lives = read
	}
	w.heard = later(w.heard, sent)
}

// until returns the earliest moment at which jobs of a FETCH may be taken from the worker.
func (w *worker) until(sent time.Time) time.Time {
	if sent.Before(w.lives) {
		return sent
	}
	return w.heard.Add(silence)
}

// nameIn puts the worker's pool into the body of a request.
func (w *worker) nameIn(body map[string]any) {
	if w.pool != noPool {
		body["pool"] = w.pool
	}
}

// poolAt returns the pool by which a FETCH was served, or "" if that is not certain: the registration
// of a worker that was silent may have ended meanwhile.
func (w *worker) poolAt(sent, read time.Time) string {
	if sent.Before(w.lives) || !read.Before(w.heard.Add(silence)) {
		return ""
	}
	return w.pool
}

// missing writes an entry for each job that a heartbeat named and its answer did not.
func (c *client) missing(sent time.Time, holds []held, extended []string) {
	for _, j := range holds {
		if !slices.Contains(extended, j.ID) {
			c.book.write(entry{What: dropped, IDs: []string{j.ID}, Lease: j.Lease, Attempt: j.Attempt, Sent: sent})
		}
	}
}

// alive sends a heartbeat.
func (c *client) alive(r *rand.Rand, w *worker) bool {
	w.mu.Lock()
	name, holds, doubt := w.name, slices.Clone(w.holds), w.doubt
	w.doubt = true
	w.mu.Unlock()
	ids := []string{}
	for _, j := range holds {
		ids = append(ids, j.ID)
	}
	body := map[string]any{"worker_id": name, "active_jobs": ids, "visibility_timeout_ms": longLease.Milliseconds()}
	w.nameIn(body)
	sent := time.Now()
	a := c.ask(r, http.MethodPost, "/ojs/v1/workers/heartbeat", "", body)
	read := time.Now()
	if a.unknown() {
		return false
	}
	var got struct {
		Extended []string `json:"jobs_extended"`
	}
	if err := json.Unmarshal(a.body, &got); a.status != http.StatusOK || err != nil {
		c.book.wrong("heartbeat: %d, %v: %s", a.status, err, a.body)
		return false
	}
	for _, j := range holds {
		if slices.Contains(got.Extended, j.ID) {
			c.book.write(entry{What: extended, IDs: []string{j.ID}, Lease: j.Lease, Until: sent.Add(silence)})
		}
	}
	if !doubt {
		c.missing(sent, holds, got.Extended)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.doubt = false; w.name == name {
		w.answered(sent, read)
	}
	return true
}

// fetch asks for jobs and works on them. It returns false if the worker has to go on under another name:
// it played dead, or does not know which jobs it holds.
func (c *client) fetch(r *rand.Rand, w *worker) bool {
	lease := leaseTime
	if c.Long {
		w.mu.Lock()
		known := !w.heard.IsZero()
		w.mu.Unlock()
		if lease = longLease; !known && !c.alive(r, w) {
			c.pause(time.Duration(20+r.IntN(80)) * time.Millisecond)
			return true
		}
	}
	queues := campaignQueues
	if r.IntN(3) == 0 {
		queues = queues[r.IntN(len(queues)):][:1]
	}
	count, pool := 1+r.IntN(6), w.pool
	body := map[string]any{
		"queues": queues, "count": count, "worker_id": w.name, "visibility_timeout_ms": lease.Milliseconds(), "wait_ms": 300,
	}
	if !c.Long {
		w.nameIn(body)
	}
	sent := time.Now()
	a := c.ask(r, http.MethodPost, "/ojs/v1/workers/fetch", "", body)
	read := time.Now()
	if a.unknown() {
		c.pause(time.Duration(20+r.IntN(80)) * time.Millisecond)
		return false
	}
	if c.Long {
		w.mu.Lock()
		pool = w.poolAt(sent, read)
		w.mu.Unlock()
	}
	if a.status == http.StatusUnprocessableEntity && (pool == "" || !poolNamed(pool).servesAny(queues)) {
		c.pause(10 * time.Millisecond)
		return true
	}
	var got struct {
		Jobs []held `json:"jobs"`
	}
	if err := json.Unmarshal(a.body, &got); a.status != http.StatusOK || err != nil {
		c.book.wrong("FETCH of %v in pool %s: %d, %v: %s", queues, pool, a.status, err, a.body)
		c.pause(100 * time.Millisecond)
		return false
	}
	// The lease began at some moment after the request was sent.
	until := sent.Add(leaseTime)
	if c.Long {
		w.mu.Lock()
		w.holds, until = got.Jobs, w.until(sent)
		w.mu.Unlock()
	}
	for _, j := range got.Jobs {
		c.book.write(entry{
			What: fetched_, IDs: []string{j.ID}, Queue: j.Queue, Pool: pool, Lease: j.Lease, Attempt: j.Attempt, Sent: sent, Until: until,
		})
		if j.State != "active" || j.Lease == "" {
			c.book.wrong("job %s was handed out in state %q with lease %q", j.ID, j.State, j.Lease)
		}
	}
	if len(got.Jobs) > count {
		c.book.wrong("a FETCH for %d jobs got %d", count, len(got.Jobs))
	}
	return c.handle(r, w.name, got.Jobs)
}

// handle works on jobs and finishes them, most of the time. It returns false if the worker plays dead
// with the jobs that it holds.
func (c *client) handle(r *rand.Rand, name string, jobs []held) bool {
	calm := c.calm.Load()
	if !calm && len(jobs) > 1 && r.IntN(3) == 0 {
		how := ack
		if slices.ContainsFunc(jobs, func(j held) bool { return j.Type == poison }) {
			how = fail
		}
		return c.finish(r, name, jobs, how)
	}
	all := true
	for _, j := range jobs {
		if !calm {
			if left := j.Until.Sub(c.now()); c.Skew != 0 && left < 0 {
				// By a clock that is an hour fast the lease ended long ago: the worker may give up.
				if r.IntN(4) == 0 {
					all = false
					continue
				}
			} else if left > 30*time.Minute && r.IntN(12) == 0 {
				// By a clock that is an hour slow there is much time left: the worker is late.
				c.pause(leaseTime + time.Duration(r.IntN(600))*time.Millisecond)
			}
			switch n := r.IntN(60); {
			case n == 0:
				return false
			case n < 10:
				c.pause(time.Duration(r.IntN(40)) * time.Millisecond)
			case n < 12 && !c.Long:
				c.beat(r, name, j)
				// From now on its silence counts as death, so it goes on under another name.
				all = false
			}
		}
		how := ack
		if !calm {
			switch n := r.IntN(20); {
			case n < 3 || j.Type == poison:
				how = fail
			case n == 3:
				how = requeue
			case n == 4 && r.IntN(3) == 0:
				how = discard
			}
		}
		all = c.finish(r, name, []held{j}, how) && all
	}
	return all
}

// beat keeps a job for longer than its lease, with heartbeats.
func (c *client) beat(r *rand.Rand, name string, j held) {
	doubt := false
	for range 2 {
		c.pause(leaseTime / 2)
		sent := time.Now()
		a := c.ask(r, http.MethodPost, "/ojs/v1/workers/heartbeat", "", map[string]any{
			"worker_id": name, "active_jobs": []string{j.ID}, "visibility_timeout_ms": leaseTime.Milliseconds(),
		})
		if a.unknown() {
			doubt = true
			continue
		}
		var got struct {
			Extended []string `json:"jobs_extended"`
		}
		if err := json.Unmarshal(a.body, &got); a.status != http.StatusOK || err != nil {
			c.book.wrong("heartbeat: %d, %v: %s", a.status, err, a.body)
			return
		}
		if len(got.Extended) == 1 {
			c.book.write(entry{What: extended, IDs: got.Extended, Lease: j.Lease, Until: sent.Add(leaseTime)})
		}
		if !doubt {
			c.missing(sent, []held{j}, got.Extended)
		}
	}
}

// finish acknowledges or fails jobs, again and again until there is an answer. It returns whether there
// was an answer about each job.
func (c *client) finish(r *rand.Rand, name string, jobs []held, how string) bool {
	path, items := "/ojs/v1/workers/nack", make([]any, len(jobs))
	for i, j := range jobs {
		item := map[string]any{"job_id": j.ID, "lease": j.Lease}
		// The time is that of the client's clock, which the server must not rely on.
		failure := map[string]any{"code": "fault", "message": "made to fail", "occurred_at": c.now()}
		switch how {
		case ack:
			path = "/ojs/v1/workers/ack"
			item["result"] = map[string]any{"by": name, "at": c.now()}
		case fail:
			item["error"] = failure
		case discard:
			failure["code"] = "DISCARD"
			item["error"] = failure
		case requeue:
			item["error"], item["requeue"] = failure, true
		}
		items[i] = item
		c.book.write(entry{What: finishes, IDs: []string{j.ID}, Lease: j.Lease, Attempt: j.Attempt, How: how})
	}
	var body any = map[string]any{"jobs": items}
	if len(jobs) == 1 {
		body = items[0]
	}
	for asked := 1; asked <= 6; asked++ {
		a := c.ask(r, http.MethodPost, path, "", body)
		if a.unknown() {
			c.pause(time.Duration(20+r.IntN(100)) * time.Millisecond)
			continue
		}
		statuses := []int{a.status}
		if len(jobs) > 1 {
			var got struct {
				Results []struct {
					Status int `json:"status"`
				} `json:"results"`
			}
			if err := json.Unmarshal(a.body, &got); a.status != http.StatusOK || err != nil || len(got.Results) != len(jobs) {
				c.book.wrong("%s of %d jobs: %d, %v: %s", how, len(jobs), a.status, err, a.body)
				return false
			}
			statuses = statuses[:0]
			for _, result := range got.Results {
				statuses = append(statuses, cmp.Or(result.Status, http.StatusOK))
			}
		}
		for i, status := range statuses {
			c.book.write(entry{
				What: finished, IDs: []string{jobs[i].ID}, Lease: jobs[i].Lease, Attempt: jobs[i].Attempt, How: how, Status: status,
				Asked: asked,
			})
			if status != http.StatusOK && status != http.StatusConflict && status != http.StatusServiceUnavailable {
				c.book.wrong("%s of %s: %d: %s", how, jobs[i].ID, status, a.body)
			}
		}
		return !slices.Contains(statuses, http.StatusServiceUnavailable)
	}
	return false
}
