package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ojs-pg/ojs-pg/internal/embedpg"
	"github.com/ojs-pg/ojs-pg/internal/migrate"
	"github.com/ojs-pg/ojs-pg/internal/pgtest"
	"github.com/ojs-pg/ojs-pg/internal/setup"
)

// Each test is that of the sentence in docs/work/delivery.md whose number is its place.
var promises = []func(*testing.T, *stage){
	jobsExistIfTheirTransactionCommits,
	answeredEnqueuesOutlivePostgres,
	theStandbyHasWhatIsAnswered,
	nobodySetsSynchronousCommit,
	enqueueingAgainUnderTheSameID,
	enqueueingAgainUnderTheSameKey,
	oneHolderAtATime,
	fetchIsPartOfItsTransaction,
	hangingUpBeforeTheAnswer,
	serverDiesBetweenClaimAndAnswer,
	anAnswerThatNobodyRead,
	aDeadWorkersJobComesBack,
	effectsHappenAgain,
	aSlowWorkerRunsBesideTheNext,
	effectsKeyedByTheID,
	resultsWithTheAck,
	heartbeatsKeepAJob,
	silentWorkersAreTakenForDead,
	lostAttemptsCount,
	oneCompletionUnderOneLease,
	oldLeasesAreRefused,
	lateAcksAreAccepted,
	ackAgainWithoutAnAnswer,
	ackWithoutProof,
	endedJobsStayEnded,
	deadLettersAreReplayed,
	expiredJobsAreDiscarded,
	leasesOutlivePostgres,
	acksOutlivePostgres,
	onlyTheDatabasesClockCounts,
	theClockJumpsAhead,
	theClockIsSetBack,
	inTheOrderOfEnqueues,
	aLateCommitIsNotPassedOver,
	whoComesBackWhere,
	theNextDoesNotWait,
	dueOnce,
	readAndFetchedAtOnce,
}

var sentence = regexp.MustCompile(`(?ms)^\*\*(\d+)\.\*\* (.+?)\n\n`)

// A sentence without a test, or a test without a sentence, is a mistake.
func TestDelivery(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/work/delivery.md")
	if err != nil {
		t.Fatal(err)
	}
	sentences := sentence.FindAllStringSubmatch(string(text), -1)
	if len(sentences) != len(promises) {
		t.Errorf("docs/work/delivery.md has %d sentences, and there are %d tests", len(sentences), len(promises))
	}
	for i, s := range sentences {
		if s[1] != strconv.Itoa(i+1) {
			t.Errorf("sentence %d has the number %s: %s", i+1, s[1], s[2])
		}
		if i >= len(promises) {
			break
		}
		t.Run(s[1], func(t *testing.T) {
			t.Parallel()
			t.Log(s[2])
			promises[i](t, &stage{t: t})
		})
	}
}

// stage is the database of a test, on which servers, sessions and processes act.
type stage struct {
	t    *testing.T
	db   *pgtest.DB // nil: ownPostgres
	url  string     // of the superuser
	pool *pgxpool.Pool
	role string // URL of the servers' role

	own *embedpg.Server
}

// set opens a pool on the database.
func (s *stage) set() *stage {
	s.t.Helper()
	s.db = pgtest.New(s.t)
	s.url, s.role, s.pool = s.db.URL, s.db.ServiceURL, s.db.Pool
	s.exec("create table public.effect (job uuid, attempt int)")
	s.exec("create table public.result (job uuid primary key, attempt int)")
	s.exec("grant all on public.effect, public.result to public")
	return s
}

// ownPostgres starts one that may be killed.
func (s *stage) ownPostgres() *stage {
	s.t.Helper()
	dir := filepath.Join(s.t.TempDir(), "data")
	s.startPostgres(dir)
	s.t.Cleanup(func() {
		s.own.Kill()
		<-s.own.Exited()
		_ = s.own.Stop()
	})
	const name, role, password = "delivery", "delivery_server", "secret"
	ctx := s.t.Context()
	err := errors.Join(setup.CreateDatabase(ctx, s.own.URL("postgres"), name), migrate.Run(ctx, s.own.URL(name), migrate.Up, nil))
	if err != nil {
		s.t.Fatal(err)
	}
	s.url, s.role = s.own.URL(name), s.own.URLFor(role, password, name)
	if err := setup.CreateServerRole(ctx, s.url, role, password); err != nil {
		s.t.Fatal(err)
	}
	pool, err := pgxpool.New(ctx, s.url)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(pool.Close)
	s.pool = pool
	return s
}

func (s *stage) startPostgres(dir string) {
	s.t.Helper()
	var err error
	// The children of a postmaster that was killed take a moment to notice.
	for range 60 {
		s.own, err = embedpg.Start(s.t.Context(), embedpg.Options{DataDir: dir, BinDir: os.Getenv("OJS_TEST_PG_BIN"), Throwaway: true})
		if err == nil {
			return
		}
		time.Sleep(500 * time.Millisecond)
	}
	s.t.Fatal(err)
}

// crash kills PostgreSQL as the kernel does when there is no memory left, and recover starts it again at the same place.
func (s *stage) crash() {
	s.t.Helper()
	if err := syscall.Kill(s.own.PID(), syscall.SIGKILL); err != nil {
		s.t.Fatal(err)
	}
	<-s.own.Exited()
}

func (s *stage) recover() {
	s.t.Helper()
	_ = s.own.Stop() // it is dead; this lets go of its directory
	s.startPostgres(s.own.DataDir)
	pgtest.Eventually(s.t, "PostgreSQL is back", func() bool { return s.pool.Ping(s.t.Context()) == nil })
}

func (s *stage) exec(sql string, args ...any) {
	s.t.Helper()
	pgtest.Exec(s.t, s.pool, sql, args...)
}

// one is a value as text, null as -.
func (s *stage) one(sql string, args ...any) string {
	s.t.Helper()
	var value *string
	if err := s.pool.QueryRow(s.t.Context(), "select ("+sql+")::text", args...).Scan(&value); err != nil {
		s.t.Fatalf("%s: %v", sql, err)
	}
	if value == nil {
		return "-"
	}
	return *value
}

func (s *stage) want(want, sql string, args ...any) {
	s.t.Helper()
	if got := s.one(sql, args...); got != want {
		s.t.Errorf("%s: %s, want %s", sql, got, want)
	}
}

func (s *stage) becomes(want, sql string, args ...any) {
	s.t.Helper()
	pgtest.Eventually(s.t, fmt.Sprintf("%s is %s for %v", sql, want, args), func() bool { return s.one(sql, args...) == want })
}

// state of a job and its attempts.
const stateOf = "select j.state || ' ' || j.attempt from ojs.job j where j.id = $1"

func (s *stage) enqueue() (id string) {
	s.t.Helper()
	return s.one("select (ojs.enqueue('a')).id")
}

// held is a job that a client holds.
type held struct {
	id, lease string
	attempt   int
}

// fetch is a FETCH in SQL in a transaction of its own.
func (s *stage) fetch(more string) (all []held) {
	s.t.Helper()
	rows, err := s.pool.Query(s.t.Context(), "select id::text, lease::text, attempt from ojs.fetch('{default}'"+more+")")
	if err == nil {
		var h held
		_, err = pgx.ForEachRow(rows, []any{&h.id, &h.lease, &h.attempt}, func() error { all = append(all, h); return nil })
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return all
}

func (s *stage) fetchOne(more string) held {
	s.t.Helper()
	all := s.fetch(more)
	if len(all) != 1 {
		s.t.Fatalf("fetched %v, want one job", all)
	}
	return all[0]
}

// refused is a statement that must fail with conflict; it returns the state that the error names.
func refused(t *testing.T, err error) (state string) {
	t.Helper()
	state, ok := conflict(err)
	if !ok {
		t.Fatalf("answered with %v, want a conflict", err)
	}
	return state
}

func conflict(err error) (state string, ok bool) {
	var failure *pgconn.PgError
	if !errors.As(err, &failure) || failure.Code != "OJ409" {
		return "", false
	}
	var detail reply
	err = json.Unmarshal([]byte(failure.Detail), &detail.Error.Details)
	return detail.Error.Details.CurrentState, err == nil
}

// blocked returns the process id of a session that waits for a lock in a statement like the given one. It
// waits until there is one.
func (s *stage) blocked(like string) (pid int32) {
	s.t.Helper()
	pgtest.Eventually(s.t, "somebody waits for a lock: "+like, func() bool {
		err := s.pool.QueryRow(s.t.Context(), `
			select pid from pg_stat_activity
			where datname = current_database() and wait_event_type = 'Lock' and query like $1`, like).Scan(&pid)
		return err == nil
	})
	return pid
}

// holding runs a statement in a transaction that stays open until letGo commits it.
func (s *stage) holding(sql string) (letGo func()) {
	s.t.Helper()
	tx, err := s.pool.Begin(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	if _, err := tx.Exec(s.t.Context(), sql); err != nil {
		s.t.Fatal(err)
	}
	return func() {
		s.t.Helper()
		if err := tx.Commit(s.t.Context()); err != nil {
			s.t.Fatal(err)
		}
	}
}

// person is a client that runs SQL in a process of its own, so that it can be killed.
type person struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.Writer
	out *bufio.Scanner
}

const personEnv = "DELIVERY_TEST_PERSON"

func init() {
	url := os.Getenv(personEnv)
	if url == "" {
		return
	}
	conn, err := pgx.Connect(context.Background(), url)
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		answer := "-"
		results, err := conn.PgConn().Exec(context.Background(), lines.Text()).ReadAll()
		for _, r := range results {
			for _, row := range r.Rows {
				answer = string(row[0])
			}
		}
		if err != nil {
			answer = "error " + err.Error()
		}
		fmt.Println(answer)
	}
	os.Exit(0)
}

func (s *stage) person() *person {
	s.t.Helper()
	p := &person{t: s.t, cmd: exec.Command(os.Args[0])}
	p.cmd.Env = append(os.Environ(), personEnv+"="+s.role)
	in, err1 := p.cmd.StdinPipe()
	out, err2 := p.cmd.StdoutPipe()
	if err := errors.Join(err1, err2, p.cmd.Start()); err != nil {
		s.t.Fatal(err)
	}
	p.in, p.out = in, bufio.NewScanner(out)
	s.t.Cleanup(p.kill)
	return p
}

// do runs a statement and returns the first value of the last row, or - if there is none.
func (p *person) do(sql string, args ...any) string {
	p.t.Helper()
	fmt.Fprintf(p.in, sql+"\n", args...)
	if !p.out.Scan() {
		p.t.Fatalf("%s: nobody answers", sql)
	}
	if strings.HasPrefix(p.out.Text(), "error") {
		p.t.Fatalf("%s: %s", sql, p.out.Text())
	}
	return p.out.Text()
}

func (p *person) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// takes fetches a job in the person's session.
func (p *person) takes(more string) (h held) {
	p.t.Helper()
	answer := p.do("select id || ' ' || lease || ' ' || attempt from ojs.fetch('{default}'%s)", more)
	if _, err := fmt.Sscan(answer, &h.id, &h.lease, &h.attempt); err != nil {
		p.t.Fatalf("fetched %q", answer)
	}
	return h
}

// reply holds the fields of an answer that these tests look at.
type reply struct {
	status int
	Job    struct {
		ID, State string
		Attempt   int
	}
	Jobs []struct {
		ID, Lease string
		Attempt   int
	}
	Extended []string `json:"jobs_extended"`
	Error    struct {
		Code    string
		Details struct {
			CurrentState string `json:"current_state"`
		}
	}
}

// ask sends a request. It fails only if there is no answer. headers are a name, a value, a name and so on.
func ask(ctx context.Context, method, url, body string, headers ...string) (r reply, err error) {
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return r, err
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return r, err
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err == nil {
		err = json.Unmarshal(raw, &r)
	}
	r.status = res.StatusCode
	return r, err
}

// web is `ojs-pg serve` in a process of its own.
type web struct {
	s    *stage
	p    *program
	name string // of its connections
	base string
}

func (s *stage) serve() *web {
	s.t.Helper()
	w := &web{s: s, name: "server " + rand.Text()}
	w.p = launch(s.t, []string{"DATABASE_URL=" + s.role, "PGAPPNAME=" + w.name}, "serve", "--listen", "127.0.0.1:0")
	w.base = w.p.find(`msg=serving address=(http://\S+)$`) + "/ojs/v1"
	return w
}

func (w *web) kill() {
	w.p.signal(syscall.SIGKILL)
	<-w.p.exited
}

func (w *web) post(path, body string, args ...any) reply {
	w.s.t.Helper()
	r, err := ask(w.s.t.Context(), "POST", w.base+path, fmt.Sprintf(body, args...))
	if err != nil {
		w.s.t.Fatalf("POST %s: %v", path, err)
	}
	return r
}

// later sends a request in the background.
func (w *web) later(path, body string, args ...any) <-chan reply {
	answer := make(chan reply, 1)
	go func() {
		r, _ := ask(context.Background(), "POST", w.base+path, fmt.Sprintf(body, args...))
		answer <- r
	}()
	return answer
}

// takes fetches a job over HTTP, and waits until there is one.
func (w *web) takes(more string) held {
	w.s.t.Helper()
	for range 6 {
		if r := w.post("/workers/fetch", `{"queues": ["default"], "wait_ms": 10000%s}`, more); len(r.Jobs) == 1 {
			return held{r.Jobs[0].ID, r.Jobs[0].Lease, r.Jobs[0].Attempt}
		}
	}
	w.s.t.Fatal("no job within a minute")
	return held{}
}

// raw sends a FETCH on a connection of its own and does not read.
func (w *web) raw(more string) net.Conn {
	w.s.t.Helper()
	address, _, _ := strings.Cut(strings.TrimPrefix(w.base, "http://"), "/")
	conn, err := net.Dial("tcp", address)
	if err != nil {
		w.s.t.Fatal(err)
	}
	w.s.t.Cleanup(func() { conn.Close() })
	body := `{"queues": ["default"]` + more + `}`
	fmt.Fprintf(conn,
		"POST /ojs/v1/workers/fetch HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	return conn
}

var noon = time.Date(2031, 5, 4, 12, 0, 0, 0, time.UTC)

// at sets the clock, so many seconds after noon, and lets it act.
func (s *stage) at(seconds int) {
	s.t.Helper()
	s.db.SetNow(noon.Add(time.Duration(seconds) * time.Second))
	s.exec("select ojs.tick()")
}

func jobsExistIfTheirTransactionCommits(t *testing.T, s *stage) {
	s.set()
	for _, c := range []struct{ end, want string }{{"", "0 jobs, 0 results"}, {"commit", "1 jobs, 1 results"}} {
		producer := s.person()
		producer.do("begin")
		id := producer.do("select (ojs.enqueue('a')).id")
		producer.do("insert into public.result values ('%s')", id)
		if c.end != "" {
			producer.do(c.end)
		}
		producer.kill()
		s.becomes("0", "select count(*) from pg_stat_activity where datname = current_database() and state like 'idle in transaction%'")
		s.want(c.want, "select format('%s jobs, %s results', (select count(*) from ojs.job), (select count(*) from public.result))")
	}
}

func answeredEnqueuesOutlivePostgres(t *testing.T, s *stage) {
	s.ownPostgres()
	w := s.serve()
	var answered sync.Map
	var count atomic.Int64
	var producers sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	for range 4 {
		producers.Go(func() {
			for ctx.Err() == nil {
				if r, err := ask(ctx, "POST", w.base+"/jobs", `{"type": "a", "args": []}`); err == nil && r.status == http.StatusCreated {
					answered.Store(r.Job.ID, true)
					count.Add(1)
				}
			}
		})
	}
	pgtest.Eventually(s.t, "a hundred jobs are enqueued", func() bool { return count.Load() >= 100 })
	s.crash()
	stop()
	producers.Wait()
	s.recover()
	answered.Range(func(id, _ any) bool {
		s.want("available 0", stateOf, id)
		return !t.Failed()
	})
}

func theStandbyHasWhatIsAnswered(t *testing.T, s *stage) {
	s.ownPostgres()
	w := s.serve()
	standby := func(name string) {
		t.Helper()
		// This session must not wait for the standby itself.
		s.exec("alter system set synchronous_standby_names = '" + name + "'")
		s.exec("select pg_reload_conf()")
		s.becomes(strconv.Quote(name), "select to_json(current_setting('synchronous_standby_names'))")
	}
	for _, c := range []struct{ path, body string }{
		{"/jobs", `{"type": "a", "args": []}`},
		{"/workers/fetch", `{"queues": ["default"]}`},
	} {
		standby("away")
		answer := w.later(c.path, "%s", c.body)
		s.becomes("true", "select exists (select from pg_stat_activity where wait_event = 'SyncRep' and usename = 'delivery_server')")
		select {
		case r := <-answer:
			t.Errorf("POST %s was answered with %d, and the standby knows nothing", c.path, r.status)
		default:
		}
		standby("")
		if r := <-answer; r.status/100 != 2 {
			t.Errorf("POST %s was answered with %d", c.path, r.status)
		}
	}
}

func nobodySetsSynchronousCommit(t *testing.T, s *stage) {
	s.set()
	s.want("0", `
		select count(*) from pg_proc
		where pronamespace = 'ojs'::regnamespace and (prosrc ~ 'synchronous_commit' or proconfig::text ~ 'synchronous_commit')
			-- It says what is set, and sets nothing.
			and proname <> '_doctor_settings'`)
	for _, setting := range []string{"on", "remote_apply", "local"} {
		s.exec("alter database " + pgx.Identifier{s.db.Name}.Sanitize() + " set synchronous_commit = " + setting)
		var got string
		if err := s.db.Open().Pool().QueryRow(t.Context(), "show synchronous_commit").Scan(&got); err != nil || got != setting {
			t.Errorf("where the database says %s, a session of a server has %s, %v", setting, got, err)
		}
	}
}

// outlives kills a server whose call of a function waits for a lock, lets go of the lock, and says whether the call came to its end:
// not if its server died between two tries to get the lock.
func (s *stage) outlives(w *web, function string, letGo func(), jobs string, args ...any) bool {
	s.t.Helper()
	s.blocked("%" + function + "%")
	w.kill()
	letGo()
	// A call that was sent before the kill may begin after it, so all of its sessions have to end.
	s.becomes("0", "select count(*) from pg_stat_activity where application_name like $1 || '%'", w.name)
	return s.one(jobs, args...) == "1"
}

func enqueueingAgainUnderTheSameID(t *testing.T, s *stage) {
	s.set()
	second := s.serve()
	var id, job string
	var sent []string
	for there := false; !there; {
		id = uuid.Must(uuid.NewV7()).String()
		sent = append(sent, id)
		job = `{"type": "a", "args": [], "id": "` + id + `"}`
		first := s.serve()
		letGo := s.holding("lock table ojs.journal in share row exclusive mode")
		first.later("/jobs", "%s", job)
		there = s.outlives(first, "ojs.enqueue_rows", letGo, "select count(*) from ojs.job j where j.id = $1", id)
	}
	if r := second.post("/jobs", "%s", job); r.status != http.StatusConflict || r.Error.Code != "duplicate" {
		t.Errorf("enqueued again, the job that was committed is answered with %d %s", r.status, r.Error.Code)
	}
	// One that was not.
	producer := s.person()
	producer.do("begin")
	other := producer.do("select (ojs.enqueue('a', p_id => '%s')).id", uuid.Must(uuid.NewV7()))
	producer.kill()
	if r := second.post("/jobs", `{"type": "a", "args": [], "id": %q}`, other); r.status != http.StatusCreated {
		t.Errorf("enqueued again, the job that was not committed is answered with %d %s", r.status, r.Error.Code)
	}
	// A server that was killed before may have sent its job without a client having read it.
	s.want("2", "select count(*) from ojs.job j where j.id in ($1, $2)", id, other)
	s.want("0", "select count(*) from ojs.job j where j.id <> all ($1::uuid[])", append(sent, other))
}

func enqueueingAgainUnderTheSameKey(t *testing.T, s *stage) {
	s.set()
	second := s.serve()
	enqueue := func(w *web, kind string) (reply, error) {
		return ask(t.Context(), "POST", w.base+"/jobs", `{"type": "`+kind+`", "args": []}`, "Idempotency-Key", "order-1")
	}
	for there := false; !there; {
		first := s.serve()
		letGo := s.holding("lock table ojs.journal in share row exclusive mode")
		go enqueue(first, "a") //nolint:errcheck // the answer is lost
		there = s.outlives(first, "ojs.enqueue_once", letGo, "select count(*) from ojs.job")
	}
	for range 2 {
		if r, err := enqueue(second, "a"); err != nil || r.status != http.StatusCreated || r.Job.ID != s.one("select id from ojs.job") {
			t.Errorf("repeated, it is answered with %d %s, %v", r.status, r.Job.ID, err)
		}
	}
	if r, err := enqueue(second, "b"); err != nil || r.status != http.StatusConflict {
		t.Errorf("another request with the key is answered with %d, %v", r.status, err)
	}
	s.want("1", "select count(*) from ojs.job")
}

func oneHolderAtATime(t *testing.T, s *stage) {
	s.set()
	const jobs = 300
	s.exec("select ojs.enqueue_bulk('a', array_fill('[]'::json, array[$1::int]))", jobs)
	servers := []*web{s.serve(), s.serve()}
	var mu sync.Mutex
	seen := map[string]int{}
	var workers sync.WaitGroup
	for i := range 8 {
		workers.Go(func() {
			for empty := 0; empty < 3; {
				var got []string
				if i < 4 {
					r, err := ask(t.Context(), "POST", servers[i%2].base+"/workers/fetch", `{"queues": ["default"], "count": 3}`)
					if err != nil || r.status != http.StatusOK {
						t.Errorf("fetch: %d %v", r.status, err)
						return
					}
					for _, j := range r.Jobs {
						got = append(got, j.ID)
					}
				} else {
					rows, err := s.db.Service().Query(t.Context(), "select id::text from ojs.fetch('{default}', $1)", i-3)
					if err == nil {
						got, err = pgx.CollectRows(rows, pgx.RowTo[string])
					}
					if err != nil {
						t.Errorf("fetch: %v", err)
						return
					}
				}
				if len(got) == 0 {
					empty++
				}
				mu.Lock()
				for _, id := range got {
					seen[id]++
				}
				mu.Unlock()
			}
		})
	}
	workers.Wait()
	for id, n := range seen {
		if n != 1 {
			t.Errorf("job %s was handed out %d times", id, n)
		}
	}
	if len(seen) != jobs {
		t.Errorf("%d of %d jobs were handed out", len(seen), jobs)
	}
}

func fetchIsPartOfItsTransaction(t *testing.T, s *stage) {
	s.set()
	id := s.enqueue()
	for _, end := range []func(*person){func(p *person) { p.do("rollback") }, (*person).kill} {
		worker := s.person()
		worker.do("begin")
		if h := worker.takes(""); h.id != id || h.attempt != 1 {
			t.Errorf("fetched %v", h)
		}
		s.want("available 0", stateOf, id)
		end(worker)
		s.becomes("0", "select count(*) from pg_stat_activity where datname = current_database() and state like 'idle in transaction%'")
		s.want("available 0", stateOf, id)
	}
	if h := s.fetchOne(""); h.id != id || h.attempt != 1 {
		t.Errorf("fetched %v", h)
	}
}

func hangingUpBeforeTheAnswer(t *testing.T, s *stage) {
	s.set()
	w := s.serve()
	id := s.enqueue()
	// A decision waits at most a second for the lane, and is made beside it then.
	letGo := s.holding("select from ojs.lane for update")
	worker := w.raw("")
	s.blocked("%ojs.fetch%")
	worker.Close()
	s.becomes("1", "select count(*) from ojs.release r where r.job_id = $1 and r.to_state = 'available'", id)
	letGo()
	s.want("available 0", stateOf, id)
	if h := w.takes(""); h.id != id || h.attempt != 1 {
		t.Errorf("the next worker got %v", h)
	}
}

func serverDiesBetweenClaimAndAnswer(t *testing.T, s *stage) {
	s.set()
	w := s.serve()
	id := s.enqueue()
	letGo := s.holding("select from ojs.lane for update")
	w.raw(`, "visibility_timeout_ms": 2000`)
	s.blocked("%ojs.fetch%")
	w.kill()
	letGo()
	s.becomes("active 1", stateOf, id)
	if h := s.serve().takes(""); h.id != id || h.attempt != 2 {
		t.Errorf("the next worker got %v", h)
	}
}

func anAnswerThatNobodyRead(t *testing.T, s *stage) {
	s.set()
	w := s.serve()
	id := s.enqueue()
	worker := w.raw(`, "visibility_timeout_ms": 1000`)
	if _, err := bufio.NewReaderSize(worker, 16).Peek(1); err != nil {
		t.Fatal(err)
	}
	worker.Close()
	if h := w.takes(""); h.id != id || h.attempt != 2 {
		t.Errorf("the next worker got %v", h)
	}
}

func aDeadWorkersJobComesBack(t *testing.T, s *stage) {
	s.set()
	w := s.serve()
	id := s.enqueue()
	worker := s.person()
	first := worker.takes(", p_visibility_timeout_ms => 1000")
	worker.kill()
	if second := w.takes(""); second.id != id || first.id != id || first.attempt != 1 || second.attempt != 2 ||
		second.lease == first.lease {
		t.Errorf("handed out as %v and then as %v", first, second)
	}
}

// twice has a worker die after its work and another one do it again, and returns how often it was done.
func (s *stage) twice(work string) string {
	s.t.Helper()
	w := s.serve()
	id := s.enqueue()
	worker := s.person()
	h := worker.takes(", p_visibility_timeout_ms => 1000")
	worker.do(work, h.id, h.attempt)
	worker.kill()
	h = w.takes("")
	worker = s.person()
	worker.do(work, h.id, h.attempt)
	if r := w.post("/workers/ack", `{"job_id": %q, "lease": %q}`, h.id, h.lease); r.status != http.StatusOK {
		s.t.Errorf("acknowledged with %d", r.status)
	}
	s.want("completed 2", stateOf, id)
	return s.one(`
		select (select count(*) from public.effect where job = $1) || ' ' || (select count(*) from public.result where job = $1)`, id)
}

func effectsHappenAgain(t *testing.T, s *stage) {
	if got := s.set().twice("insert into public.effect values ('%s', %d)"); got != "2 0" {
		t.Errorf("the effect is there %s times", got)
	}
}

func effectsKeyedByTheID(t *testing.T, s *stage) {
	if got := s.set().twice("insert into public.result values ('%s', %d) on conflict do nothing"); got != "0 1" {
		t.Errorf("the effect is there %s times", got)
	}
}

func aSlowWorkerRunsBesideTheNext(t *testing.T, s *stage) {
	s.set()
	w := s.serve()
	id := s.enqueue()
	slow := w.takes(`, "worker_id": "slow", "visibility_timeout_ms": 1000`)
	next := w.takes(`, "worker_id": "next"`)
	if slow.id != id || next.id != id {
		t.Fatalf("they hold %v and %v", slow, next)
	}
	for worker, want := range map[string]int{"slow": 0, "next": 1} {
		if r := w.post("/workers/heartbeat", `{"worker_id": %q, "active_jobs": [%q]}`, worker, id); r.status != http.StatusOK ||
			len(r.Extended) != want {
			t.Errorf("the heartbeat of the %s one is answered with %d %v", worker, r.status, r.Extended)
		}
	}
}

func resultsWithTheAck(t *testing.T, s *stage) {
	s.set()
	w := s.serve()
	id := s.enqueue()
	work := func(h held) *person {
		worker := s.person()
		worker.do("begin")
		worker.do("insert into public.result values ('%s', %d)", h.id, h.attempt)
		worker.do("select (ojs.ack('%s', '%s')).state", h.id, h.lease)
		return worker
	}
	both := "select (select count(*) from public.result) || ' ' || (select state from ojs.job where id = $1)"
	worker := work(w.takes(`, "visibility_timeout_ms": 1000`))
	s.want("0 active", both, id)
	worker.kill()
	again := w.takes("")
	s.want("0 active", both, id)
	worker = work(again)
	worker.do("commit")
	worker.kill()
	s.want("1 completed", both, id)
}

func heartbeatsKeepAJob(t *testing.T, s *stage) {
	s.set()
	s.at(0)
	s.exec("select ojs.enqueue('a', p_timeout_ms => 190000)")
	h := s.fetchOne(", p_worker_id => 'w'")
	for seconds := 20; seconds < 190; seconds += 20 {
		s.at(seconds)
		s.exec("select ojs.heartbeat('w', array[$1::uuid])", h.id)
		if got := s.fetch(""); len(got) > 0 {
			t.Fatalf("after %d seconds somebody else gets %v", seconds, got)
		}
	}
	s.at(191)
	s.want("retryable 1", stateOf, h.id)
	s.at(300)
	if again := s.fetchOne(""); again.id != h.id || again.attempt != 2 {
		t.Errorf("after its time somebody else gets %v", again)
	}
}

func silentWorkersAreTakenForDead(t *testing.T, s *stage) {
	s.set()
	s.at(0)
	s.enqueue()
	s.enqueue()
	held := s.fetch(", 2, 'w', 3600000")
	s.exec("select ojs.heartbeat('w', array[$1::uuid], 3600000)", held[0].id)
	s.exec("select ojs.configure(p_heartbeat_timeout_ms => 60000)")
	s.at(59)
	s.want("2", "select count(*) from ojs.job where state = 'active'")
	// It may have been heard of up to a fifteenth of that time later than was written down.
	s.at(65)
	again := s.fetch(", 10, 'v', 1200000")
	if len(again) != 2 || again[0].attempt != 2 || again[1].attempt != 2 {
		t.Errorf("handed out again: %v", again)
	}
	// The next worker says how many it has, and lists one of them.
	s.at(300)
	s.exec("select ojs.beat('v', array[$1::uuid], p_visibility_timeout_ms => 1200000, p_active => 2)", again[0].id)
	s.at(365)
	s.want("available 2", stateOf, again[0].id)
	s.want("active 2", stateOf, again[1].id)
	s.at(65 + 1200)
	s.want("available 2", stateOf, again[1].id)
}

func lostAttemptsCount(t *testing.T, s *stage) {
	s.set()
	s.at(0)
	id := s.one("select (ojs.enqueue('a', p_max_attempts => 2)).id")
	for i := range 2 {
		if h := s.fetchOne(""); h.id != id || h.attempt != i+1 {
			t.Errorf("handed out: %v", h)
		}
		s.at(31 * (i + 1))
	}
	s.want("discarded 2", stateOf, id)
	if got := s.fetch(", 10"); len(got) > 0 {
		t.Errorf("handed out: %v", got)
	}
}

func oneCompletionUnderOneLease(t *testing.T, s *stage) {
	s.set()
	w := s.serve()
	for range 10 {
		s.enqueue()
		h := w.takes("")
		// None of them gets ahead before all are under way.
		letGo := s.holding("lock table ojs.journal in share row exclusive mode")
		answers := make(chan string, 8)
		for range 4 {
			go func() {
				_, err := s.db.Service().Exec(t.Context(), "select from ojs.ack($1, $2)", h.id, h.lease)
				answer, ok := conflict(err)
				switch {
				case err == nil:
					answer = "done"
				case !ok:
					answer = err.Error()
				}
				answers <- answer
			}()
			go func() {
				r := <-w.later("/workers/ack", `{"job_id": %q, "lease": %q}`, h.id, h.lease)
				if r.status == http.StatusOK {
					answers <- "done"
				} else {
					answers <- r.Error.Details.CurrentState
				}
			}()
		}
		s.blocked("%ojs.ack%")
		letGo()
		done := 0
		for range 8 {
			switch got := <-answers; got {
			case "done":
				done++
			case "completed":
			default:
				t.Errorf("refused, and the job is %q", got)
			}
		}
		if done != 1 {
			t.Errorf("%d of 8 ACKs completed the job", done)
		}
		s.want("1", `
			select sum(w.jobs) from ojs.journal w, ojs.job j
			where j.id = $1 and w.to_state = 'completed' and w.at = j.finished_at`, h.id)
	}
}

func oldLeasesAreRefused(t *testing.T, s *stage) {
	s.set()
	s.at(0)
	s.enqueue()
	old := s.fetchOne("")
	work := func(want string) {
		t.Helper()
		tx, err := s.db.Service().Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(context.Background()) //nolint:errcheck // committed below, or refused
		if _, err := tx.Exec(t.Context(), "insert into public.effect values ($1)", old.id); err != nil {
			t.Fatal(err)
		}
		_, err = tx.Exec(t.Context(), "select from ojs.ack($1, $2)", old.id, old.lease)
		if got := refused(t, err); got != want {
			t.Errorf("the job is said to be %s, want %s", got, want)
		}
		if err := tx.Commit(t.Context()); !errors.Is(err, pgx.ErrTxCommitRollback) {
			t.Errorf("the transaction ended with %v", err)
		}
		s.want("0", "select count(*) from public.effect")
	}
	s.at(31)
	work("available")
	s.fetchOne("")
	work("active")
}

func lateAcksAreAccepted(t *testing.T, s *stage) {
	s.set()
	s.at(0)
	s.enqueue()
	h := s.fetchOne("")
	s.db.SetNow(noon.Add(time.Hour))
	s.exec("select ojs.ack($1, $2)", h.id, h.lease)
	s.at(7200)
	s.want("completed 1", stateOf, h.id)
}

func ackAgainWithoutAnAnswer(t *testing.T, s *stage) {
	s.set()
	second := s.serve()
	// send gets an ACK to where it waits for a lock.
	send := func() (first *web, id, ack string, letGo func()) {
		first, id = s.serve(), s.enqueue()
		ack = fmt.Sprintf(`{"job_id": %q, "lease": %q}`, id, first.takes("").lease)
		letGo = s.holding("lock table ojs.journal in share row exclusive mode")
		first.later("/workers/ack", "%s", ack)
		return first, id, ack, letGo
	}
	const completed = "select count(*) from ojs.job j where j.id = $1 and j.state = 'completed'"
	for there := false; !there; {
		first, id, ack, letGo := send()
		if there = s.outlives(first, "ojs.ack", letGo, completed, id); !there {
			continue
		}
		if r := second.post("/workers/ack", "%s", ack); r.status != http.StatusConflict || r.Error.Code != "conflict" ||
			r.Error.Details.CurrentState != "completed" {
			t.Errorf("asked again, the ACK that was committed is answered with %d %v", r.status, r.Error)
		}
		s.want("completed 1", stateOf, id)
	}

	first, id, ack, letGo := send()
	s.blocked("%ojs.ack%")
	first.kill()
	s.becomes("0", "select count(pg_terminate_backend(pid)) from pg_stat_activity where application_name like $1 || '%'", first.name)
	letGo()
	if r := second.post("/workers/ack", "%s", ack); r.status != http.StatusOK {
		t.Errorf("asked again, the ACK that was not committed is answered with %d %v", r.status, r.Error)
	}
	s.want("completed 1", stateOf, id)
}

func ackWithoutProof(t *testing.T, s *stage) {
	s.set()
	w := s.serve()
	id := s.enqueue()
	w.takes(`, "worker_id": "somebody"`)
	if r := w.post("/workers/ack", `{"job_id": %q}`, id); r.status != http.StatusOK {
		t.Errorf("answered with %d", r.status)
	}
	s.want("completed 1", stateOf, id)
	s.want("1", `
		select sum(w.unfenced) from ojs.journal w, ojs.job j
		where j.id = $1 and w.to_state = 'completed' and w.at = j.finished_at`, id)
}

func endedJobsStayEnded(t *testing.T, s *stage) {
	s.set()
	s.at(0)
	s.enqueue()
	s.enqueue()
	s.enqueue()
	all := s.fetch(", 2, 'w'")
	s.exec("select ojs.ack($1, $2)", all[0].id, all[0].lease)
	s.exec("select ojs.cancel($1)", all[1].id)
	s.exec("select ojs.cancel(id) from ojs.job where state = 'available'")
	read := func() string { return s.one("select string_agg(j::text, ' ' order by j.id) from ojs.job j") }
	before := read()
	for _, id := range strings.Fields(s.one("select string_agg(id::text, ' ') from ojs.job")) {
		for _, call := range []string{
			"ojs.ack($1)", `ojs.nack($1, '{"message": "x"}')`, `ojs.nack($1, '{"message": "x"}', p_requeue => true)`,
			"ojs.cancel($1)", "ojs.activate($1)",
			"ojs.release($1, '" + all[0].lease + "')",
		} {
			if _, err := s.pool.Exec(t.Context(), "select from "+call, id); err == nil {
				t.Errorf("%s is accepted for %s", call, s.one(stateOf, id))
			} else {
				refused(t, err)
			}
		}
		s.want("0", "select count(*) from ojs.heartbeat('w', array[$1::uuid])", id)
	}
	s.at(365 * 24 * 3600)
	if got := s.fetch(", 10"); len(got) > 0 {
		t.Errorf("handed out: %v", got)
	}
	if after := read(); after != before {
		t.Errorf("the jobs are\n%s\nand were\n%s", after, before)
	}
}

func deadLettersAreReplayed(t *testing.T, s *stage) {
	s.set()
	s.at(0)
	id := s.one(`select (ojs.enqueue('a', p_retry => '{"max_attempts": 1, "on_exhaustion": "dead_letter"}')).id`)
	h := s.fetchOne("")
	s.exec(`select ojs.nack($1, '{"message": "x"}', $2)`, h.id, h.lease)
	s.at(3600)
	s.want("discarded 1", stateOf, id)
	if got := s.fetch(", 10"); len(got) > 0 {
		t.Errorf("handed out: %v", got)
	}
	s.exec("select ojs.retry_dead_letter($1)", id)
	if again := s.fetchOne(""); again.id != id || again.attempt != 1 || again.lease == h.lease {
		t.Errorf("handed out again: %v, first %v", again, h)
	}
}

func expiredJobsAreDiscarded(t *testing.T, s *stage) {
	s.set()
	s.at(0)
	for range 2 {
		s.exec("select ojs.enqueue('a', p_expires_at => ojs.now() + interval '10 seconds')")
	}
	inTime := s.fetchOne("")
	s.db.SetNow(noon.Add(10 * time.Second))
	if got := s.fetch(", 10"); len(got) > 0 {
		t.Errorf("handed out: %v", got)
	}
	s.at(11)
	s.want("active 1", stateOf, inTime.id)
	s.want("discarded", "select state from ojs.job where id <> $1", inTime.id)
}

func leasesOutlivePostgres(t *testing.T, s *stage) {
	s.ownPostgres()
	w := s.serve()
	s.exec("select ojs.enqueue('a')")
	h := w.takes(`, "visibility_timeout_ms": 600000`)
	s.crash()
	s.recover()
	// Until the server has met all connections that the crash has broken it answers 503: try again.
	post := func(path, body string, args ...any) (r reply) {
		pgtest.Eventually(s.t, path+" is not answered with 503", func() bool {
			r = w.post(path, body, args...)
			return r.status != http.StatusServiceUnavailable
		})
		return r
	}
	if r := post("/workers/fetch", `{"queues": ["default"], "count": 10}`); r.status != http.StatusOK || len(r.Jobs) > 0 {
		t.Errorf("somebody else gets %d %v", r.status, r.Jobs)
	}
	if r := post("/workers/ack", `{"job_id": %q, "lease": %q}`, h.id, h.lease); r.status != http.StatusOK {
		t.Errorf("acknowledged with %d %v", r.status, r.Error)
	}
	s.want("completed 1", stateOf, h.id)
}

func acksOutlivePostgres(t *testing.T, s *stage) {
	s.ownPostgres()
	w := s.serve()
	const jobs, workers = 400, 4
	s.exec("select ojs.enqueue_bulk('a', array_fill('[]'::json, array[$1::int]))", jobs)
	r := w.post("/workers/fetch", `{"queues": ["default"], "count": %d, "visibility_timeout_ms": 600000}`, jobs)
	if len(r.Jobs) != jobs {
		t.Fatalf("fetched %d jobs", len(r.Jobs))
	}
	ack := func(i int) (reply, error) {
		return ask(t.Context(), "POST", w.base+"/workers/ack", fmt.Sprintf(`{"job_id": %q, "lease": %q}`, r.Jobs[i].ID, r.Jobs[i].Lease))
	}
	var answered, done [jobs]bool
	var count atomic.Int64
	var working sync.WaitGroup
	for k := range workers {
		working.Go(func() {
			for i := k; i < jobs; i += workers {
				if a, err := ack(i); err == nil && a.status == http.StatusOK {
					answered[i] = true
					count.Add(1)
				}
			}
		})
	}
	pgtest.Eventually(s.t, "some are acknowledged", func() bool { return count.Load() >= 20 })
	s.crash()
	working.Wait()
	s.recover()
	for i := range r.Jobs {
		if answered[i] {
			s.want("completed 1", stateOf, r.Jobs[i].ID)
			continue
		}
		pgtest.Eventually(s.t, "the ACK is answered", func() bool {
			a, err := ack(i)
			done[i] = err == nil &&
				(a.status == http.StatusOK || a.status == http.StatusConflict && a.Error.Details.CurrentState == "completed")
			return done[i]
		})
	}
	s.want(strconv.Itoa(jobs), "select count(*) from ojs.job where state = 'completed' and attempt = 1")
	s.want(strconv.Itoa(jobs), "select sum(w.jobs) from ojs.journal w where w.to_state = 'completed'")
}

func onlyTheDatabasesClockCounts(t *testing.T, s *stage) {
	s.set()
	s.at(0)
	// To this server, as to this worker, it is another year.
	w := s.serve()
	first := w.post("/jobs", `{"type": "a", "args": []}`)
	s.exec("select ojs.enqueue('later', p_queue => 'later', p_scheduled_at => $1)", noon.Add(time.Minute))
	h := w.takes("")
	s.want("true", "select lease_expires_at = $2 from ojs.job where id = $1", h.id, noon.Add(30*time.Second))
	s.at(29)
	s.want("active 1", stateOf, first.Job.ID)
	s.at(30)
	// The server's clock may be at it when ours looks.
	s.becomes("available 1", stateOf, first.Job.ID)
	s.want("scheduled", "select state from ojs.job where type = 'later'")
	s.at(60)
	s.becomes("available", "select state from ojs.job where type = 'later'")
}

func theClockJumpsAhead(t *testing.T, s *stage) {
	s.set()
	s.at(0)
	s.enqueue()
	h := s.fetchOne("")
	s.at(24 * 3600)
	again := s.fetchOne("")
	if again.id != h.id || again.attempt != 2 {
		t.Errorf("handed out again: %v, first %v", again, h)
	}
	_, err := s.pool.Exec(t.Context(), "select from ojs.ack($1, $2)", h.id, h.lease)
	refused(t, err)
	s.exec("select ojs.ack($1, $2)", again.id, again.lease)
}

func theClockIsSetBack(t *testing.T, s *stage) {
	s.set()
	s.at(0)
	s.enqueue()
	s.enqueue()
	s.exec("select ojs.enqueue('later', p_scheduled_at => $1)", noon.Add(time.Minute))
	all := s.fetch(", 2")
	for _, seconds := range []int{-3600, -1800, 0, 29} {
		s.at(seconds)
		if got := s.fetch(", 10"); len(got) > 0 {
			t.Errorf("%d seconds after noon somebody gets %v", seconds, got)
		}
		if seconds == -1800 {
			s.exec("select ojs.ack($1, $2)", all[0].id, all[0].lease)
			s.exec("select ojs.enqueue('meanwhile')")
			if got := s.fetch(", 10, p_visibility_timeout_ms => 7200000"); len(got) != 1 {
				t.Errorf("while the clock is wrong somebody gets %v", got)
			}
		}
	}
	s.at(60)
	if got := s.fetch(", 10"); len(got) != 2 {
		t.Errorf("handed out a minute after noon: %v", got)
	}
	s.want("completed 1", stateOf, all[0].id)
	s.want("active 2", stateOf, all[1].id)
	s.want("active 1", "select state || ' ' || attempt from ojs.job where type = 'later'")
	s.want("active 1", "select state || ' ' || attempt from ojs.job where type = 'meanwhile'")
}

func inTheOrderOfEnqueues(t *testing.T, s *stage) {
	s.set()
	w := s.serve()
	var want, got []string
	for i := range 40 {
		if i%2 == 0 {
			want = append(want, s.one("select (ojs.enqueue('a')).id"))
		} else {
			want = append(want, w.post("/jobs", `{"type": "a", "args": []}`).Job.ID)
		}
	}
	for range want {
		got = append(got, s.fetchOne("").id)
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("handed out\n%s\nenqueued\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func aLateCommitIsNotPassedOver(t *testing.T, s *stage) {
	s.set()
	slow := s.person()
	slow.do("begin")
	early := slow.do("select (ojs.enqueue('a')).id")
	later := s.enqueue()
	if h := s.fetchOne(""); h.id != later {
		t.Errorf("handed out: %v, want the one that is there", h)
	}
	slow.do("commit")
	if h := s.fetchOne(""); h.id != early {
		t.Errorf("handed out: %v, want the one that came late", h)
	}
}

func whoComesBackWhere(t *testing.T, s *stage) {
	s.set()
	s.at(0)
	for _, kind := range []string{"retried", "taken-back"} {
		s.exec("select ojs.enqueue($1, p_retry => '{\"initial_interval_ms\": 1000, \"jitter\": false}')", kind)
	}
	s.exec("select ojs.enqueue('scheduled', p_scheduled_at => $1)", noon.Add(10*time.Second))
	all := s.fetch(", 2")
	s.exec(`select ojs.nack($1, '{"message": "x"}', $2)`, all[0].id, all[0].lease)
	s.exec("select ojs.enqueue('waiting')")
	s.at(40)
	s.want("taken-back waiting retried scheduled", "select string_agg(j.type, ' ') from ojs.fetch('{default}', 10) j")
}

func theNextDoesNotWait(t *testing.T, s *stage) {
	s.set()
	s.enqueue()
	s.enqueue()
	first, second := s.fetchOne(""), s.fetchOne("")
	s.want("active 1", stateOf, first.id)
	s.exec("select ojs.ack($1, $2)", second.id, second.lease)
	s.exec(`select ojs.nack($1, '{"message": "x"}', $2)`, first.id, first.lease)
	s.want("retryable 1", stateOf, first.id)
	s.want("completed 1", stateOf, second.id)
}

func dueOnce(t *testing.T, s *stage) {
	s.set()
	s.db.SetNow(noon)
	const jobs = 200
	for i := range jobs / 20 {
		s.exec(`
			select ojs.enqueue_bulk('a', array_fill('[]'::json, array[20]),
				p_scheduled_at => $1)`, noon.Add(time.Duration(i+1)*time.Second))
	}
	s.db.SetNow(noon.Add(time.Minute))
	promoted := make(chan int, 6)
	for range cap(promoted) {
		go func() {
			n, sum := 0, 0
			for range 20 {
				if err := s.db.Service().QueryRow(t.Context(), "select promoted from ojs.tick(20)").Scan(&n); err != nil {
					t.Errorf("tick: %v", err)
				}
				sum += n
			}
			promoted <- sum
		}()
	}
	sum := 0
	for range cap(promoted) {
		sum += <-promoted
	}
	if sum != jobs {
		t.Errorf("%d jobs were promoted, want %d", sum, jobs)
	}
	s.want(strconv.Itoa(jobs), "select sum(w.jobs) from ojs.journal w where w.to_state = 'available'")
	if got := s.fetch(", 1000"); len(got) != jobs {
		t.Errorf("%d jobs were handed out, want %d", len(got), jobs)
	}
}

func readAndFetchedAtOnce(t *testing.T, s *stage) {
	s.set()
	first, second := s.serve(), s.serve()
	for range 20 {
		made := first.post("/jobs", `{"type": "a", "args": []}`)
		if r, err := ask(t.Context(), "GET", second.base+"/jobs/"+made.Job.ID, ""); err != nil || r.Job.State != "available" {
			t.Errorf("read: %d %s, %v", r.status, r.Job.State, err)
		}
		if r := second.post("/workers/fetch", `{"queues": ["default"], "count": 10}`); len(r.Jobs) != 1 || r.Jobs[0].ID != made.Job.ID {
			t.Errorf("fetched %v, want %s", r.Jobs, made.Job.ID)
		}
	}
}
