//go:build linux

package soak

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ojs-pg/ojs-pg/internal/migrate"
)

// fault is one kind of failure. do causes it and returns when the cause is gone; the system has to
// recover by itself.
type fault struct {
	name string
	do   func(*campaign, *rand.Rand) error
	explains
	// skew: some clients have a wrong clock, from the beginning of the round.
	skew bool
	// standby: the round needs a synchronous standby.
	standby bool
	disk    bool // needs file systems of its own
}

// away holds the failures that a database which is away explains.
var away = explains{database: true, clock: true}

var faults = []fault{
	{name: "kill server", explains: explains{network: true, clock: true}, do: func(c *campaign, r *rand.Rand) error {
		for i := range c.servers {
			if i == 0 || r.IntN(3) == 0 {
				c.servers[(i+r.IntN(2))%2].kill()
			}
		}
		return nil
	}},
	{name: "freeze server", explains: explains{clock: true}, do: func(c *campaign, r *rand.Rand) error {
		s := c.servers[r.IntN(len(c.servers))]
		s.signal(syscall.SIGSTOP)
		time.Sleep(time.Duration(200+r.IntN(2000)) * time.Millisecond)
		s.signal(syscall.SIGCONT)
		return nil
	}},
	{name: "kill worker", do: func(c *campaign, r *rand.Rand) error { c.workers[r.IntN(len(c.workers))].kill(); return nil }},
	{name: "kill producer", do: func(c *campaign, r *rand.Rand) error { c.producers[r.IntN(len(c.producers))].kill(); return nil }},
	{name: "kill Postgres", explains: away, do: func(c *campaign, r *rand.Rand) error {
		if r.IntN(2) == 0 {
			if err := c.pg.primary.killBackend(r.IntN(1000)); err != nil {
				return err
			}
		} else {
			c.pg.primary.process.signal(syscall.SIGKILL)
			<-c.pg.primary.process.gone
			pause(r, 500)
		}
		c.pg.primary.back()
		return nil
	}},
	{name: "stop Postgres", explains: away, do: func(c *campaign, r *rand.Rand) error {
		c.pg.primary.process.end([]syscall.Signal{syscall.SIGQUIT, syscall.SIGINT}[r.IntN(2)], 20*time.Second)
		pause(r, 1000)
		c.pg.primary.start()
		return nil
	}},
	{name: "terminate sessions", explains: away, do: func(c *campaign, r *rand.Rand) error {
		for range 1 + r.IntN(4) {
			if err := c.pg.primary.do(fmt.Sprintf(`select count(pg_terminate_backend(a.pid)) from pg_stat_activity a
				where a.datname = current_database() and a.pid <> pg_backend_pid() and random() < %.2f`, 0.2+0.8*r.Float64())); err != nil {
				return err
			}
			pause(r, 250)
		}
		return nil
	}},
	{name: "cut database", explains: away, do: func(c *campaign, r *rand.Rand) error { return cut(r, c.toDatabase) }},
	{name: "slow database", explains: away, do: func(c *campaign, r *rand.Rand) error { return slow(r, c.toDatabase) }},
	{name: "cut HTTP", explains: explains{network: true}, do: func(c *campaign, r *rand.Rand) error { return cut(r, c.toServers) }},
	{name: "slow HTTP", explains: explains{network: true}, do: func(c *campaign, r *rand.Rand) error { return slow(r, c.toServers) }},
	{name: "wrong clock", skew: true, do: func(*campaign, *rand.Rand) error { return nil }},
	{name: "full disk", explains: away, disk: true, do: func(c *campaign, r *rand.Rand) error { return c.fillDisk(r, c.pg.data) }},
	{name: "full log disk", explains: away, disk: true, do: func(c *campaign, r *rand.Rand) error { return c.fillDisk(r, c.pg.wal) }},
	{name: "failover", explains: away, standby: true, do: func(c *campaign, _ *rand.Rand) error {
		killed, promoted, err := c.pg.failover()
		c.killed, c.promoted = killed, promoted
		return err
	}},
}

func pause(r *rand.Rand, ms int) { time.Sleep(time.Duration(r.IntN(ms)) * time.Millisecond) }

// cut ends connections, once or several times. Sometimes the proxies refuse new ones for a while.
func cut(r *rand.Rand, proxies []*proxy) error {
	for range 2 + r.IntN(6) {
		if r.IntN(4) == 0 {
			for _, p := range proxies {
				p.refuse.Store(true)
			}
		}
		for _, p := range proxies {
			p.cut(r)
		}
		pause(r, 300)
		for _, p := range proxies {
			p.refuse.Store(false)
		}
		pause(r, 100)
	}
	return nil
}

// slow delays every piece of data. Sometimes it ends the connections with the data that still waits.
func slow(r *rand.Rand, proxies []*proxy) error {
	some := proxies[:1+r.IntN(len(proxies))]
	for _, p := range some {
		p.delay.Store(int64(20+r.IntN(280)) * int64(time.Millisecond))
		if r.IntN(4) == 0 {
			p.delay.Store(int64(1500 * time.Millisecond))
		}
	}
	time.Sleep(time.Duration(500+r.IntN(1000)) * time.Millisecond)
	for _, p := range some {
		if r.IntN(2) == 0 {
			p.cut(r)
		}
		p.delay.Store(0)
	}
	return nil
}

const noSpace = "No space left on device"

// ownCrash is what PostgreSQL logs of a session that crashed. It logs other signals for sessions that a
// fault kills (9) and for a log without disk space (6).
const ownCrash = "was terminated by signal 11"

func (c *campaign) fillDisk(r *rand.Rand, d *disk) error {
	before := c.pg.primary.logged(noSpace)
	if err := d.fill(); err != nil {
		return err
	}
	if d == c.pg.wal {
		// So that the next write needs a new file, and finds the disk full.
		_ = c.pg.primary.do("select pg_switch_wal()")
	}
	for deadline := time.Now().Add(5 * time.Second); c.pg.primary.logged(noSpace) == before && time.Now().Before(deadline); {
		time.Sleep(20 * time.Millisecond)
	}
	pause(r, 1200)
	if err := d.free(); err != nil {
		return err
	}
	c.pg.primary.back()
	return nil
}

type campaign struct {
	t      *testing.T
	seed   uint64
	dir    string
	binary string
	pg     *cluster

	servers    []*kept
	toServers  []*proxy // one per server, from its clients
	toDatabase []*proxy // two per server and two for SQL producers, one per node of the cluster
	serverURLs []string // through toServers
	direct     []string
	sqlProxies []*proxy

	workers   []*kept
	producers []*kept

	killed, promoted time.Time // of the failover in this round
	total            totals
}

type totals struct {
	rounds    map[string]int
	failovers []time.Duration
	felt      int // rounds in which PostgreSQL found a disk full
	found     findings
	began     time.Time
}

func number(t *testing.T, name string, otherwise uint64) uint64 {
	t.Helper()
	s := os.Getenv(name)
	if s == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// TestFaults runs rounds of load, with one fault at a random moment in each. OJS_FAULTS_SEED repeats the
// random choices of a campaign, OJS_FAULTS_ROUNDS is the number of rounds, OJS_FAULTS_ONLY names the
// only fault.
func TestFaults(t *testing.T) {
	c := &campaign{t: t, seed: number(t, "OJS_FAULTS_SEED", uint64(time.Now().UnixNano())%1e9), binary: build(t)}
	rounds := int(number(t, "OJS_FAULTS_ROUNDS", 4))
	t.Logf("seed %d, %d rounds", c.seed, rounds)
	var err error
	if c.dir, err = os.MkdirTemp("", "ojs-faults-"); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(c.dir, 0o711); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if !t.Failed() {
			_ = os.RemoveAll(c.dir)
		}
	})
	c.pg = newCluster(t, c.dir)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s; ledgers and logs are in %s", c.pg.salvage(c.dir), c.dir)
		}
	})
	c.prepare()

	deck := c.deck(rounds)
	c.total = totals{rounds: map[string]int{}, found: findings{states: map[string]int{}}, began: time.Now()}
	for i, f := range deck {
		if !c.round(i, f) {
			t.Fatalf("round %d of seed %d failed: %s", i, c.seed, f.name)
		}
		c.total.rounds[f.name]++
	}
	c.end()
}

// deck returns a random order of faults, in which each comes equally often.
func (c *campaign) deck(rounds int) []fault {
	r := rand.New(rand.NewPCG(c.seed, 0))
	possible := slices.Clone(faults)
	if c.pg.data.max == 0 || c.pg.wal.max == 0 {
		possible = slices.DeleteFunc(possible, func(f fault) bool { return f.disk })
		c.t.Log("no file system can be mounted here (that takes root), so none fills up")
	}
	if only := os.Getenv("OJS_FAULTS_ONLY"); only != "" {
		possible = slices.DeleteFunc(possible, func(f fault) bool { return f.name != only })
		if len(possible) == 0 {
			c.t.Fatalf("OJS_FAULTS_ONLY is %q; there are: %v", only, faultNames())
		}
	}
	var deck []fault
	for len(deck) < rounds {
		hand := slices.Clone(possible)
		r.Shuffle(len(hand), func(i, j int) { hand[i], hand[j] = hand[j], hand[i] })
		deck = append(deck, hand...)
	}
	return deck[:rounds]
}

func faultNames() []string {
	var names []string
	for _, f := range faults {
		names = append(names, f.name)
	}
	return names
}

const (
	serverRole = "campaign_server"
	tenantRole = "campaign_acme"
)

// crons are the cron jobs of a round. They fire every second while producers work.
var crons = []struct{ name, tenant, overlap string }{
	{"each", "acme", "allow"}, {"skipping", "beta", "skip"}, {"waiting", "gamma", "enqueue"},
}

func (c *campaign) fire(enabled bool) {
	c.t.Helper()
	for _, cr := range crons {
		if err := c.pg.primary.do(fmt.Sprintf(`
			select ojs.configure_cron('%s', p_enabled => %t, p_tenant => '%s')`, cr.name, enabled, cr.tenant)); err != nil {
			c.t.Fatal(err)
		}
	}
}

// prepare starts PostgreSQL, makes the roles, and starts the servers and the proxies between them.
func (c *campaign) prepare() {
	t := c.t
	admin, err := c.pg.primary.connect("postgres")
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close(context.Background())
	if _, err := admin.Exec(t.Context(), "create database "+database); err != nil {
		t.Fatal(err)
	}
	if err := migrate.Run(t.Context(), c.pg.primary.url("ojs", c.pg.password, ""), migrate.Up, nil); err != nil {
		t.Fatal(err)
	}
	err = c.pg.primary.do(
		fmt.Sprintf("create role %s login in role ojs_service password '%s'", serverRole, c.pg.password),
		fmt.Sprintf("select ojs.create_tenant_role('acme', '%s', '%s')", tenantRole, c.pg.password),
		"create table public.orders (job uuid)", "create table public.results (job uuid, lease uuid)",
		"grant insert on public.orders, public.results to public",
		"select ojs.configure_tenant('beta', p_weight => 3)",
		// Limits that are never reached. Their counters are checked.
		`select ojs.configure_limits(t, '{"max_queue_depth": 1000000, "max_scheduled": 1000000}') from unnest('{beta,acme}'::text[]) t`,
		`select ojs.configure_queue('work', '{"backpressure": {"max_depth": 1000000}}')`,
		fmt.Sprintf("select ojs.configure(p_heartbeat_timeout_ms => %d)", silence.Milliseconds()),
	)
	if err != nil {
		t.Fatal(err)
	}
	for _, cr := range crons {
		if err := c.pg.primary.do(fmt.Sprintf(`
			select ojs.put_cron('%s', '* * * * * *', '%s', p_queue => '%s', p_tenant => '%s', p_overlap_policy => '%s',
				p_retry => '%s', p_max_attempts => 3, p_enabled => false)`,
			cr.name, cronJob, campaignQueues[0], cr.tenant, cr.overlap, retryPolicy)); err != nil {
			t.Fatal(err)
		}
	}
	through := func() []*proxy {
		var two []*proxy
		for _, n := range c.pg.nodes {
			two = append(two, newProxy(t, fmt.Sprintf("127.0.0.1:%d", n.port)))
		}
		c.toDatabase = append(c.toDatabase, two...)
		return two
	}
	for i := range 2 {
		address := fmt.Sprintf("127.0.0.1:%d", freePort(t))
		url := throughURL(through(), serverRole, c.pg.password)
		c.direct = append(c.direct, "http://"+address)
		p := newProxy(t, address)
		c.toServers = append(c.toServers, p)
		c.serverURLs = append(c.serverURLs, "http://"+p.address())
		log := filepath.Join(c.dir, fmt.Sprintf("server-%d.log", i))
		c.servers = append(c.servers, keep(t, 100*time.Millisecond, func() *exec.Cmd {
			cmd := exec.Command(c.binary, "serve", "--listen", address, "--max-conns", "8")
			cmd.Env = append(os.Environ(), "DATABASE_URL="+url)
			if file, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err == nil {
				cmd.Stdout, cmd.Stderr = file, file
			}
			return cmd
		}))
	}
	c.sqlProxies = through()
	c.healthy()
}

// healthy returns when both servers answer.
func (c *campaign) healthy() {
	c.t.Helper()
	deadline := time.Now().Add(time.Minute)
	client := &http.Client{Timeout: time.Second}
	for _, url := range c.direct {
		for {
			res, err := client.Get(url + "/ojs/v1/health")
			if err == nil {
				res.Body.Close()
				if res.StatusCode == http.StatusOK {
					break
				}
			}
			if time.Now().After(deadline) {
				c.t.Fatalf("%s does not become healthy: %v", url, err)
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
}

// turn is the state of a round.
type turn struct {
	c     *campaign
	n     int
	fault fault
	r     *rand.Rand
	books string // directory of the ledgers
	began time.Time
	load  time.Duration // how long producers go on
	skews []string      // clients whose clock is wrong
	of    course

	full, crashes int // how often PostgreSQL had said so before
	stuck         findings
}

// round runs a few seconds of load with one fault in it, waits until all jobs have ended, and checks.
func (c *campaign) round(n int, f fault) bool {
	u := &turn{c: c, n: n, fault: f, r: rand.New(rand.NewPCG(c.seed, uint64(n)+1)), began: time.Now()}
	u.load = time.Duration(1800+u.r.IntN(1000)) * time.Millisecond
	moment := time.Duration(300+u.r.IntN(1000)) * time.Millisecond
	if err := u.prepare(); err != nil {
		c.t.Fatal(err)
	}
	u.start(u.firstRules())
	c.fire(true)
	time.Sleep(moment)
	c.killed, c.promoted = time.Time{}, time.Time{}
	u.of.fault, u.of.broke = f.explains, time.Now()
	if err := f.do(c, u.r); err != nil {
		c.t.Errorf("%s: %v", f.name, err)
		return false
	}
	c.healthy()
	u.of.whole = time.Now()
	time.Sleep(time.Until(u.began.Add(u.load)))
	u.stop(c.producers, "producer")
	u.lastRules()
	c.fired(u.of.whole)
	c.fire(false)
	// The counters have to be right at any moment, also while the clients work.
	live, err := c.check(u.books, u.of)
	if err != nil {
		c.t.Error(err)
		return false
	}
	u.replay()
	for _, w := range c.workers {
		w.signal(syscall.SIGUSR1)
	}
	drained := u.drain()
	u.stop(c.workers, "worker")
	woken := c.wakeUps(u.books, u.r)
	c.takeInEnds()
	u.of.drained = true
	found, err := c.check(u.books, u.of)
	if err != nil {
		c.t.Error(err)
		return false
	}
	took := u.took(found)
	c.t.Logf("round %d: %s after %.1f s: %d jobs %v, %d unknown (%d of them there), %d times 503, %d times no answer",
		n, f.name, moment.Seconds(), found.jobs, found.states, found.unknown, found.turnedUp, found.refused, found.unanswered)
	c.t.Logf("round %d: limits set or removed %d times, met %d times, by pools %d times, %d pauses", n, found.limits, found.full,
		found.fullPools, found.pauses)
	c.t.Logf("round %d: drained in %.1f s, woken after %d ms, %.1f s in all%s",
		n, drained.Seconds(), woken.Milliseconds(), time.Since(u.began).Seconds(), took)
	c.total.found.add(found)
	return u.report(slices.Concat(u.stuck.violations, live.violations, found.violations))
}

// prepare makes the directory of the ledgers and the standby if the round needs one, and notes the time
// and the state of PostgreSQL's log.
func (u *turn) prepare() (err error) {
	if u.fault.standby {
		u.c.pg.addStandby()
	}
	u.books = filepath.Join(u.c.dir, fmt.Sprintf("round-%03d", u.n))
	if err := os.Mkdir(u.books, 0o700); err != nil {
		return err
	}
	u.full, u.crashes = u.c.pg.primary.logged(noSpace), u.c.pg.logged(ownCrash)
	u.of.since, err = u.c.databaseTime()
	return err
}

var severalTenants = []string{"beta", "gamma", "delta", "acme"}

// start starts the clients. The operator does nothing for the time idle.
func (u *turn) start(idle time.Duration) {
	c := u.c
	asServer, asTenant := throughURL(c.sqlProxies, serverRole, c.pg.password), throughURL(c.sqlProxies, tenantRole, c.pg.password)
	// Four workers over HTTP, each in a pool of its own.
	c.workers = []*kept{
		u.client(workerHTTP, 0, orders{Pools: []string{noPool, "narrow", "wide", "keepers"}}),
		u.client(workerHTTP, 1, orders{Long: true, Pools: []string{"wide", "keepers", "bound", noPool}}),
		u.client(workerSQL, 2, orders{Database: asServer, Pools: []string{noPool, noPool, "wide", "bound", "keepers"}}),
		u.client(workerSQL, 3, orders{Database: asTenant, Tenants: []string{"acme"}, Pools: []string{noPool, noPool, "wide"}}),
	}
	c.producers = []*kept{
		u.client(producerHTTP, 0, orders{Tenants: severalTenants}),
		u.client(producerSQL, 1, orders{Tenants: severalTenants, Database: asServer}),
		u.client(producerSQL, 2, orders{Tenants: []string{"acme"}, Database: asTenant}),
		u.client(operating, 3, orders{Database: asServer, Idle: idle}),
	}
}

// client starts a client, and starts it again whenever it dies; producers only while there is load. Each
// start has a ledger of its own.
func (u *turn) client(role string, i int, o orders) *kept {
	o.Role, o.Seed, o.Servers = role, u.r.Uint64(), u.c.serverURLs
	if u.fault.skew {
		o.Skew = time.Duration(u.r.IntN(3)-1) * time.Hour
	}
	if o.Skew != 0 {
		u.skews = append(u.skews, fmt.Sprintf("%s %v", role, o.Skew))
	}
	name := fmt.Sprintf("%s-%d", role, i)
	ends, lives := time.Now().Add(u.load), 0
	return keep(u.c.t, 50*time.Millisecond, func() *exec.Cmd {
		if lives++; lives > 1 && role != workerHTTP && role != workerSQL && time.Now().After(ends) {
			return nil
		}
		mine := o
		mine.Name = fmt.Sprintf("%s.%d", name, lives)
		mine.Ledger = filepath.Join(u.books, mine.Name)
		mine.Seed += uint64(lives)
		mine.For = max(time.Until(ends), time.Millisecond)
		return mine.command()
	})
}

func (u *turn) stop(clients []*kept, what string) {
	for i, k := range clients {
		if !k.stop(syscall.SIGTERM, sessions+2*patience) {
			u.stuck.violation("%s %d did not stop when it was told to", what, i)
		}
	}
}

// took returns a text about the effect of the fault. The test fails if the fault had none.
func (u *turn) took(found *findings) (text string) {
	c := u.c
	if u.fault.standby {
		seconds, ok := c.firstFetch(u.books)
		if !ok {
			found.violation("no FETCH succeeded after the failover")
		}
		c.total.failovers = append(c.total.failovers, seconds)
		text = fmt.Sprintf(", first FETCH %.2f s after the kill (promoted after %.2f s)", seconds.Seconds(),
			c.promoted.Sub(c.killed).Seconds())
	}
	if len(u.skews) > 0 {
		text = ", " + strings.Join(u.skews, ", ")
	}
	if u.fault.disk {
		felt := c.pg.primary.logged(noSpace) - u.full
		if felt > 0 {
			c.total.felt++
		}
		text = fmt.Sprintf(", felt %d times", felt)
	}
	if n := c.pg.logged(ownCrash) - u.crashes; n > 0 {
		found.violation("PostgreSQL crashed %d times", n)
	}
	return text
}

// report returns true if there are no violations. Otherwise it fails the test with the first of them,
// and keeps the ledgers.
func (u *turn) report(violations []string) bool {
	for i, v := range violations {
		if i == 30 {
			u.c.t.Errorf("and %d more", len(violations)-i)
			break
		}
		u.c.t.Error(v)
	}
	if len(violations) == 0 {
		_ = os.RemoveAll(u.books)
	}
	return len(violations) == 0
}

func (f *findings) add(g *findings) {
	f.jobs += g.jobs
	f.unknown += g.unknown
	f.turnedUp += g.turnedUp
	f.withdrawn += g.withdrawn
	f.handouts += g.handouts
	f.again += g.again
	f.revived += g.revived
	f.fired += g.fired
	f.expired += g.expired
	f.limits += g.limits
	f.full += g.full
	f.fullPools += g.fullPools
	f.pauses += g.pauses
	f.refused += g.refused
	f.unanswered += g.unanswered
	for state, n := range g.states {
		f.states[state] += n
	}
	f.violations = append(f.violations, g.violations...)
}

func (c *campaign) databaseTime() (at time.Time, err error) {
	conn, err := c.pg.primary.connect(database)
	if err != nil {
		return at, err
	}
	defer conn.Close(context.Background())
	return at, conn.QueryRow(c.t.Context(), "select ojs.now()").Scan(&at)
}

func (c *campaign) check(books string, of course) (*findings, error) {
	conn, err := c.pg.primary.connect(database)
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.Background())
	tx, err := conn.BeginTx(c.t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		return nil, err
	}
	if of.drained {
		return check(c.t.Context(), tx, readBooks(c.t, books), of)
	}
	f := &findings{}
	if err := f.tokens(c.t.Context(), tx); err != nil {
		return nil, err
	}
	return f, f.counters(c.t.Context(), tx, of.since)
}

// fired waits until cron jobs have had time to fire that were due before an instant.
func (c *campaign) fired(until time.Time) {
	conn, err := c.pg.primary.connect(database)
	if err != nil {
		c.t.Fatal(err)
	}
	defer conn.Close(context.Background())
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		var behind int
		err := conn.QueryRow(c.t.Context(), `select count(*) from ojs.crons c
			where not exists (select from ojs.cron_runs r where r.tenant_id = c.tenant_id and r.name = c.name
				and r.due_at >= date_trunc('second', $1::timestamptz))`, until).Scan(&behind)
		if err != nil {
			c.t.Fatal(err)
		}
		if behind == 0 {
			return
		}
	}
}

// drain waits until all jobs have ended. It goes on for as long as their number decreases.
func (u *turn) drain() time.Duration {
	c, began := u.c, time.Now()
	conn, err := c.pg.primary.connect(database)
	if err != nil {
		c.t.Fatal(err)
	}
	defer conn.Close(context.Background())
	fewest, deadline := -1, time.Now().Add(20*time.Second)
	for {
		var left int
		var paused bool
		err := conn.QueryRow(c.t.Context(), `select count(*), exists (select from ojs.rule r where r.paused_at is not null)
			from ojs.job j where j.created_at >= $1
			and (j.state in ('available', 'active', 'retryable') or j.state = 'scheduled'
				and j.scheduled_at < ojs.now() + interval '10 minutes'
			or j.state = 'pending' and j.type = $2)`, u.of.since, cronJob).Scan(&left, &paused)
		if err != nil {
			c.t.Fatal(err)
		}
		if paused {
			// Changes for which the operator got no answer have happened by now, so these come last.
			u.lastRules()
		}
		if fewest < 0 || left < fewest {
			fewest, deadline = left, time.Now().Add(20*time.Second)
		}
		if left == 0 || time.Now().After(deadline) {
			return time.Since(began)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// replay retries dead letters after producers have ended. With limits that hold jobs back, most dead
// letters come so late.
func (u *turn) replay() {
	book, err := openBook(filepath.Join(u.books, "replays"), "campaign")
	if err != nil {
		u.c.t.Fatal(err)
	}
	cl := &client{orders: orders{Servers: u.c.direct}, book: book, http: &http.Client{Timeout: patience}, began: u.began}
	for _, tenant := range severalTenants {
		cl.replay(u.r, tenant)
	}
}

// takeInEnds makes the database count the ends of attempts, which otherwise the next decision does.
func (c *campaign) takeInEnds() {
	if err := c.pg.primary.do("select ojs._enter_lane(), ojs._fold_on()"); err != nil {
		c.t.Fatal(err)
	}
}

// wakeUps lets a FETCH wait at each server, and then commits a job for each. It returns the time that the
// slowest took.
func (c *campaign) wakeUps(books string, r *rand.Rand) time.Duration {
	conn, err := c.pg.primary.connect(database)
	if err != nil {
		c.t.Fatal(err)
	}
	defer conn.Close(context.Background())
	book, err := openBook(filepath.Join(books, prober), prober)
	if err != nil {
		c.t.Fatal(err)
	}
	var servers []listener
	for i, url := range c.direct {
		servers = append(servers, listener{url: url, from: c.toDatabase[2*i : 2*i+2]})
	}
	ready(c.t.Context(), book, servers)
	took, err := wakeUps(c.t.Context(), conn, book, r, servers, "probe-"+filepath.Base(books), 20*time.Second)
	if err != nil {
		c.t.Fatal(err)
	}
	return took
}

// firstFetch returns the time from the kill of the primary until a worker had a job for which it had
// asked after the kill.
func (c *campaign) firstFetch(books string) (time.Duration, bool) {
	var first time.Time
	for _, e := range readBooks(c.t, books) {
		if e.What == fetched_ && e.Sent.After(c.killed) && (first.IsZero() || e.At.Before(first)) {
			first = e.At
		}
	}
	return first.Sub(c.killed), !first.IsZero()
}

// end checks what concerns all rounds together, and prints the figures.
func (c *campaign) end() {
	t := c.t
	for i, s := range c.servers {
		if !s.stop(syscall.SIGINT, 30*time.Second) {
			t.Errorf("server %d did not stop when it was told to", i)
		}
	}
	found, total := c.total.found, c.total
	rounds := 0
	for _, name := range slices.Sorted(maps.Keys(total.rounds)) {
		t.Logf("%-20s %d rounds", name, total.rounds[name])
		rounds += total.rounds[name]
	}
	t.Logf("seed %d: %d rounds in %v, %d jobs %v", c.seed, rounds, time.Since(total.began).Round(time.Second), found.jobs, found.states)
	t.Logf("%d hand-outs, %d jobs handed out more than once, %d dead letters retried, %d jobs of cron, %d expired",
		found.handouts, found.again, found.revived, found.fired, found.expired)
	t.Logf("%d jobs rolled back, %d enqueued without an answer (%d of them there); %d times 503, %d times no answer",
		found.withdrawn, found.unknown, found.turnedUp, found.refused, found.unanswered)
	t.Logf("limits were set or removed %d times, and met %d times, by pools %d times; %d pauses", found.limits, found.full,
		found.fullPools, found.pauses)
	if full := total.rounds["full disk"] + total.rounds["full log disk"]; full > 0 {
		t.Logf("PostgreSQL found a disk full in %d rounds of %d", total.felt, full)
	}
	if n := len(total.failovers); n > 0 {
		slices.Sort(total.failovers)
		t.Logf("from the kill of the primary to the first job in hand: min %.2f s, median %.2f s, max %.2f s",
			total.failovers[0].Seconds(), total.failovers[n/2].Seconds(), total.failovers[n-1].Seconds())
	}
	if found.jobs < 20*rounds || found.states["completed"] == 0 {
		t.Errorf("the campaign did not happen: %d jobs", found.jobs)
	}
	// With few rounds it may happen that no limit is reached.
	if rounds >= 10 && (found.full == 0 || found.fullPools == 0 || found.pauses == 0) {
		t.Errorf("in %d rounds limits were met %d times, by pools %d times, and there were %d pauses", rounds, found.full,
			found.fullPools, found.pauses)
	}
}
