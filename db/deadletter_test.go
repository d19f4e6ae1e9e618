package db_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

const deadPolicy = `{"max_attempts": 1, "on_exhaustion": "dead_letter"}`

// bury makes dead letters: jobs of a tenant in a queue that fail with an error of the given type.
func bury(t testing.TB, d *pgtest.DB, tenant, queue, errorType string, n int) (ids []string) {
	t.Helper()
	service := d.Service()
	ids = list[string](t, service, `
		select id::text
		from ojs.enqueue_bulk('dead.job', array(select '[1]'::json from generate_series(1, $3)), $2,
			p_retry => $4::text::jsonb, p_tenant => $1) id`,
		tenant, queue, n, deadPolicy)
	exec(t, service, "select count(*) from ojs.fetch(array[$1], $2, p_tenant => $3)", queue, n, tenant)
	if got := one[int](t, service, `
		select count(*)
		from ojs.settle((select json_agg(json_build_object('id', id, 'tenant', $2::text, 'error',
			json_build_object('message', 'm', 'type', $3::text)))
		from unnest($1::text[]) id)) where state = 'discarded'`, ids, tenant, errorType); got != n {
		t.Fatalf("%d of %d jobs were discarded", got, n)
	}
	return ids
}

func shards(t testing.TB, q querier) []string {
	t.Helper()
	return lines(t, q, "select tenant_id, queue, available, active, discarded, total_jobs, failed from ojs.shard_stats order by 1, 2")
}

// Which failures lead into the dead letter queue, said by ojs.nack and by ojs.settle.
func TestWhoBecomesADeadLetter(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	for _, c := range []struct {
		name, policy, failure string
		dead                  bool
	}{
		{"exhausted, the default policy", `{"max_attempts": 1}`, `{"message": "m"}`, false},
		{"exhausted, discard", `{"max_attempts": 1, "on_exhaustion": "discard"}`, `{"message": "m"}`, false},
		{"exhausted, dead_letter", deadPolicy, `{"message": "m"}`, true},
		{"not retryable, dead_letter", `{"on_exhaustion": "dead_letter"}`, `{"message": "m", "retryable": false}`, true},
		{
			"listed as non-retryable, dead_letter", `{"on_exhaustion": "dead_letter", "non_retryable_errors": ["bad.*"]}`,
			`{"message": "m", "type": "bad.card"}`, true,
		},
		{
			"listed as non-retryable, the default policy", `{"non_retryable_errors": ["bad.*"]}`,
			`{"message": "m", "type": "bad.card"}`, false,
		},
		{"the handler says so", `{"on_exhaustion": "discard"}`, `{"message": "m", "code": "DEAD_LETTER"}`, true},
		{"the handler says so, no policy", `{}`, `{"message": "m", "code": "DEAD_LETTER"}`, true},
		{"the handler discards", deadPolicy, `{"message": "m", "code": "DISCARD"}`, false},
		{"the handler fails it", deadPolicy, `{"message": "m", "code": "FAIL"}`, false},
	} {
		for _, by := range []string{
			"select state::text from ojs.nack($1, $2::text::jsonb)",
			"select state::text from ojs.settle(json_build_array(json_build_object('id', $1::text, 'error', $2::text::json)))",
		} {
			id := one[string](t, service, `
				select id::text from ojs.enqueue('a', p_queue => 'q', p_retry => $1::text::jsonb, p_tenant => 'acme')`, c.policy)
			oneJob(t, service, "ojs.fetch('{q}')")
			if state := one[string](t, service, by, id, c.failure); state != "discarded" {
				t.Errorf("%s: the job is %s", c.name, state)
			}
			if got := one[int](t, service, `
				select count(*)::int from ojs.dead_letters() where id = $1`, id); got != map[bool]int{true: 1}[c.dead] {
				t.Errorf("%s: %d times in the dead letter queue by %s", c.name, got, by)
			}
		}
	}
	// A failure that is retried leaves nothing, and nothing is left of one that was rolled back.
	id := one[string](t, service, `
		select id::text from ojs.enqueue('a', p_queue => 'q', p_retry => '{"on_exhaustion": "dead_letter"}')`)
	oneJob(t, service, "ojs.fetch('{q}')")
	tx := begin(t, service)
	exec(t, tx, `select from ojs.nack($1, '{"message": "m", "code": "DEAD_LETTER"}')`, id)
	rollback(t, tx)
	exec(t, service, `select from ojs.nack($1, '{"message": "m"}')`, id)
	refused(t, service, "OJ404", "select from ojs.dead_letter_info($1)", id)
}

func TestDeadLetterRetried(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	d.SetNow(noon)
	service := d.Service()
	id := bury(t, d, "acme", "q", "Timeout", 1)[0]
	waiting := one[string](t, service, "select id::text from ojs.enqueue('a', p_queue => 'q', p_tenant => 'acme')")
	tick(t, service, 1000)
	if got := shards(t, service); !slices.Equal(got, []string{"acme q 1 0 1 2 1"}) {
		t.Errorf("before, the statistics are %v", got)
	}
	later := noon.Add(time.Hour)
	d.SetNow(later)
	if got := lines(t, service, `
		select id::text, state, attempt, enqueued_at = $2, jsonb_array_length(errors), finished_at, retry
		from ojs.retry_dead_letter($1)`, id, later); len(got) != 1 ||
		got[0] != id+" available 0 true 1 - map[max_attempts:1 on_exhaustion:dead_letter]" {
		t.Errorf("retried, it is %v", got)
	}
	if got := shards(t, service); !slices.Equal(got, []string{"acme q 2 0 0 2 1"}) {
		t.Errorf("after, the statistics are %v", got)
	}
	tick(t, service, 1000)
	if got := shards(t, service); !slices.Equal(got, []string{"acme q 2 0 0 2 1"}) {
		t.Errorf("rolled up, the statistics are %v", got)
	}
	refused(t, service, "OJ404", "select from ojs.retry_dead_letter($1)", id)
	// Behind what was available, and with all its attempts before it.
	if got := list[string](t, service, "select id::text from ojs.fetch('{q}', 10)"); !slices.Equal(got, []string{waiting, id}) {
		t.Errorf("handed out %v, want first the one that waited, then the one retried", got)
	}
	if got := lines(t, service, `
		select state, attempt, jsonb_array_length(errors)
		from ojs.nack($1, '{"message": "again"}')`, id); !slices.Equal(got, []string{"discarded 1 2"}) {
		t.Errorf("failed again, it is %v", got)
	}
	if got := lines(t, service, `
		select type, subject from ojs.events('{job.dead_lettered,dead_letter.retried,job.discarded}', p_tenant => 'acme')
		order by time, type`); !slices.Equal(got,
		[]string{"job.discarded " + id, "dead_letter.retried " + id, "job.dead_lettered " + id, "job.discarded " + id}) {
		t.Errorf("the events are %v", got)
	}
	if got := list[string](t, d.Pool, unsound); len(got) > 0 {
		t.Errorf("unsound: %v", got)
	}
}

// An override goes through the rules of a new job, and moves the job's numbers with it.
func TestDeadLetterRetriedWithChanges(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	id := bury(t, d, "acme", "q", "Timeout", 1)[0]
	for override, field := range map[string]string{
		`[]`: "override", `5`: "override", `{"state": "active"}`: "override.state", `{"tenant_id": "globex"}`: "override.tenant_id",
		`{"queue": 5}`: "override.queue", `{"queue": null}`: "override.queue",
		`{"queue": "No"}`: "override.queue", `{"priority": 101}`: "override.priority", `{"priority": 1.5}`: "override.priority",
		`{"args": {}}`: "override.args", `{"meta": {"tenant_id": "globex"}}`: "override.meta.tenant_id",
		`{"retry": {"max_attempts": -1}}`: "override.retry.max_attempts", `{"max_attempts": 1001}`: "override.max_attempts",
		`{"args": [{"a": 1, "a": 2}]}`: "override.args",
		`{"expires_at": "soon"}`:       "override.expires_at", `{"expires_at": "+soon"}`: "override.expires_at",
		`{"expires_at": "infinity"}`: "override.expires_at",
		`{"expires_at": "tomorrow"}`: "override.expires_at", `{"expires_at": "02/03/2099 10:00"}`: "override.expires_at",
		`{"expires_at": "2099-02-03T10:00:00"}`: "override.expires_at",
	} {
		if got := detail(t, refused(t, service, "OJ400 OJ401 OJ405 OJ422", `
			select from ojs.retry_dead_letter($1, $2::text::json)`, id, override)); got["field"] != field {
			t.Errorf("%s is refused for %v, want %s", override, got["field"], field)
		}
	}
	if got := shards(t, service); !slices.Equal(got, []string{"acme q 0 0 1 1 1"}) {
		t.Errorf("after refusals the statistics are %v", got)
	}
	const override = `{"queue": "other", "priority": 7, "args": [1.50, {"b":1, "a":2}], "meta": {"by": "me"},
		"retry": {"max_attempts": 2}}`
	if got := lines(t, service, `
		select queue, priority, args::text, meta, retry ->> 'max_attempts', retry ->> 'on_exhaustion', max_attempts, state
		from ojs.retry_dead_letter($1, $2::text::json)`, id, override); !slices.Equal(got,
		[]string{`other 7 [1.50, {"b":1, "a":2}] map[by:me] 2 dead_letter 2 available`}) {
		t.Errorf("retried, it is %v", got)
	}
	want := []string{"acme other 1 0 0 1 0", "acme q 0 0 0 0 1"}
	for range 2 {
		if got := shards(t, service); !slices.Equal(got, want) {
			t.Errorf("the statistics are %v, want %v", got, want)
		}
		tick(t, service, 1000)
	}
	if got := oneJob(t, service, "ojs.fetch('{other}')"); got.ID != id {
		t.Errorf("handed out %v", got)
	}

	// What has expired stays, unless it may live longer.
	d.SetNow(noon)
	dead := one[string](t, service, `
		select id::text
		from ojs.enqueue('a', p_queue => 'q', p_expires_at => $1, p_retry => $2::text::jsonb)`, noon.Add(time.Minute), deadPolicy)
	oneJob(t, service, "ojs.fetch('{q}')")
	exec(t, service, `select from ojs.nack($1, '{"message": "m"}')`, dead)
	d.SetNow(noon.Add(time.Hour))
	refused(t, service, "OJ409", "select from ojs.retry_dead_letter($1)", dead)
	if got := one[int](t, service, "select ojs.retry_dead_letters()"); got != 0 {
		t.Errorf("%d expired jobs were retried", got)
	}
	if got := one[bool](t, service, `select expires_at is null from ojs.retry_dead_letter($1, '{"expires_at": null}')`, dead); !got {
		t.Error("it still expires")
	}
}

func TestDeadLettersByFilter(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	d.SetNow(noon)
	a := bury(t, d, "acme", "mail", "Timeout", 3)
	d.SetNow(noon.Add(time.Hour))
	b := bury(t, d, "acme", "billing", "Timeout", 2)
	d.SetNow(noon.Add(2 * time.Hour))
	c := bury(t, d, "globex", "mail", "BadCard", 4)
	sorted := func(ids ...[]string) []string { return slices.Sorted(slices.Values(slices.Concat(ids...))) }
	for filter, want := range map[string][]string{
		"":                                      sorted(a, b, c),
		"p_queue => 'mail'":                     sorted(a, c),
		"p_type => 'dead.job'":                  sorted(a, b, c),
		"p_type => 'other'":                     nil,
		"p_error_type => 'Timeout'":             sorted(a, b),
		"p_tenant => 'globex'":                  sorted(c),
		"p_tenant => 'nobody'":                  nil,
		"p_since => '2031-05-04 13:00Z'":        sorted(b, c),
		"p_until => '2031-05-04 13:00Z'":        sorted(a),
		"p_queue => 'mail', p_tenant => 'acme'": sorted(a),
	} {
		if got := list[string](t, service, "select id::text from ojs.dead_letters("+filter+") order by 1"); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", filter, got, want)
		}
		if got := one[int](t, service, "select ojs.dead_letter_count("+filter+")::int"); got != len(want) {
			t.Errorf("%s: counted %d, want %d", filter, got, len(want))
		}
	}
	var paged []string
	for offset := 0; offset < 9; offset += 4 {
		paged = append(paged, list[string](t, service, "select id::text from ojs.dead_letters(p_limit => 4, p_offset => $1)", offset)...)
	}
	if !slices.Equal(sorted(paged), sorted(a, b, c)) || !slices.Contains(c, paged[0]) || !slices.Contains(a, paged[8]) {
		t.Errorf("page by page: %v", paged)
	}
	if got := one[string](t, service, "select ojs.dead_letter_stats('acme') - 'retention'"); !strings.Contains(got, `"total": 5`) {
		t.Errorf("the numbers are %s", got)
	}
	for _, bad := range []string{
		"dead_letters(p_limit => 0)", "dead_letters(p_limit => 1001)", "dead_letters(p_offset => -1)",
		"retry_dead_letters(p_limit => 0)", "retry_dead_letters(p_limit => 10001)",
		"purge_dead_letters(p_limit => null)", "dead_letter_info(null)", "dead_letters(p_tenant => '')",
	} {
		refused(t, service, "OJ400", "select ojs."+bad)
	}

	if got := one[int](t, service, "select ojs.retry_dead_letters('mail', p_limit => 2, p_tenant => 'acme')"); got != 2 {
		t.Errorf("retried %d, want the limit", got)
	}
	if got := one[int](t, service, "select ojs.retry_dead_letters('mail', p_tenant => 'acme')"); got != 1 {
		t.Errorf("retried %d, want the rest", got)
	}
	if got := one[int](t, service, "select ojs.purge_dead_letters(p_error_type => 'BadCard', p_limit => 3)"); got != 3 {
		t.Errorf("purged %d", got)
	}
	exec(t, service, "select from ojs.delete_dead_letter($1)", b[0])
	refused(t, service, "OJ404", "select from ojs.delete_dead_letter($1)", b[0])
	refused(t, service, "OJ404", "select from ojs.job_info($1)", b[0])
	// Ever discarded, and not retried.
	want := []string{"acme billing 0 0 2 2 2", "acme mail 3 0 0 3 3", "globex mail 0 0 4 4 4"}
	if got := shards(t, service); !slices.Equal(got, want) {
		t.Errorf("the statistics are %v, want %v", got, want)
	}
	if got := one[int](t, service, "select ojs.dead_letter_count()::int"); got != 2 {
		t.Errorf("%d dead letters are left", got)
	}
}

// A tenant's login role and a caller that names a tenant meet that tenant's dead letters only, in totals, statistics and bulk calls, too.
func TestDeadLettersOfOthers(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	mine, theirs := bury(t, d, "acme", "q", "Mine", 2), bury(t, d, "globex", "q", "Theirs", 3)
	acme := d.As("acme")
	for _, call := range []string{"dead_letter_info", "retry_dead_letter", "delete_dead_letter"} {
		unknown := refused(t, acme, "OJ404", "select from ojs."+call+"($1)", "01932a4e-0000-7000-8000-000000000000")
		foreign := refused(t, acme, "OJ404", "select from ojs."+call+"($1)", theirs[0])
		if strings.ReplaceAll(foreign.Message, theirs[0], "") != strings.ReplaceAll(unknown.Message,
			"01932a4e-0000-7000-8000-000000000000", "") || len(foreign.Detail) != len(unknown.Detail) {
			t.Errorf("%s tells a foreign job from an unknown one: %s, %s", call, foreign.Message, unknown.Message)
		}
		refused(t, acme, "OJ403", "select from ojs."+call+"($1, p_tenant => 'globex')", theirs[0])
		refused(t, service, "OJ404", "select from ojs."+call+"($1, p_tenant => 'acme')", theirs[0])
	}
	for _, call := range []string{"dead_letters", "dead_letter_count", "retry_dead_letters", "purge_dead_letters", "dead_letter_stats"} {
		refused(t, acme, "OJ403", "select from ojs."+call+"(p_tenant => 'globex')")
	}
	if got := list[string](t, acme, `
		select id::text from ojs.dead_letters() order by 1`); !slices.Equal(got, slices.Sorted(slices.Values(mine))) {
		t.Errorf("acme lists %v", got)
	}
	if got := one[int](t, acme, "select ojs.dead_letter_count()::int"); got != 2 {
		t.Errorf("acme counts %d", got)
	}
	if got := fmt.Sprint(one[map[string]any](t, acme, "select ojs.dead_letter_stats()")); strings.Contains(got, "Theirs") ||
		!strings.Contains(got, "total:2") {
		t.Errorf("acme's numbers are %v", got)
	}
	refused(t, acme, "42501", "select from ojs.dead_letter")
	refused(t, acme, "42501", "select from ojs.dead_job")
	refused(t, acme, "42501", "select ojs.configure_dead_letters(p_max_count => 1)")
	if got := list[string](t, acme, `
		select distinct tenant_id from ojs.events('{job.dead_lettered}')`); !slices.Equal(got, []string{"acme"}) {
		t.Errorf("acme sees events of %v", got)
	}
	if got := one[int](t, acme, "select ojs.retry_dead_letters()"); got != 2 {
		t.Errorf("acme retried %d", got)
	}
	if got := one[int](t, acme, "select ojs.purge_dead_letters()"); got != 0 {
		t.Errorf("acme purged %d", got)
	}
	if got := one[int](t, service, "select ojs.dead_letter_count(p_tenant => 'globex')::int"); got != 3 {
		t.Errorf("globex has %d left", got)
	}
	// One id, two tenants.
	same := uuidAt(time.Now())
	for _, tenant := range []string{"acme", "globex"} {
		exec(t, service, "select from ojs.enqueue('a', p_queue => 'same', p_id => $1, p_tenant => $2)", same, tenant)
		exec(t, service, "select count(*) from ojs.fetch('{same}')")
		exec(t, service, `select from ojs.nack($1, '{"message": "m", "code": "DEAD_LETTER"}', p_tenant => $2)`, same, tenant)
	}
	refused(t, service, "OJ411", "select from ojs.retry_dead_letter($1)", same)
	exec(t, acme, "select from ojs.delete_dead_letter($1)", same)
	if got := oneJob(t, service, "ojs.retry_dead_letter($1)", same); got.Tenant != "globex" {
		t.Errorf("retried %v", got)
	}
}

// Bulk retries at once share the work, and each job is retried once.
func TestDeadLettersRetriedAtOnce(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	ids := bury(t, d, "acme", "q", "Timeout", 300)
	var wg sync.WaitGroup
	counts := make([]int, 4)
	for i := range counts {
		wg.Go(func() {
			for {
				var n int
				sql := "select ojs.retry_dead_letters(p_limit => 17)"
				if i == 3 {
					sql = "select ojs.purge_dead_letters(p_limit => 5)"
				}
				if err := service.QueryRow(t.Context(), sql).Scan(&n); err != nil {
					t.Errorf("%s: %v", sql, err)
					return
				}
				counts[i] += n
				if n == 0 {
					return
				}
			}
		})
	}
	wg.Wait()
	retried, purged := counts[0]+counts[1]+counts[2], counts[3]
	if retried+purged != len(ids) {
		t.Errorf("retried %v and purged %d of %d", counts[:3], purged, len(ids))
	}
	if got := shards(t, service); !slices.Equal(got, []string{fmt.Sprintf("acme q %d 0 %d 300 300", retried, purged)}) {
		t.Errorf("retried %d, purged %d, but the statistics are %v", retried, purged, got)
	}
	if got := one[int](t, service, "select count(*)::int from ojs.fetch('{q}', 1000)"); got != retried {
		t.Errorf("handed out %d, want %d", got, retried)
	}

	// Two calls about one job: the second waits, and finds it gone.
	for i, calls := range [][2]string{{"delete_dead_letter", "retry_dead_letter"}, {"retry_dead_letter", "delete_dead_letter"}} {
		id := bury(t, d, "acme", fmt.Sprint("one", i), "Timeout", 1)[0]
		first, second := begin(t, service), begin(t, service)
		exec(t, first, "select from ojs."+calls[0]+"($1)", id)
		if got := one[int](t, service, "select ojs.retry_dead_letters()"); got != 0 {
			t.Errorf("a bulk retry took %d jobs that somebody else is at", got)
		}
		waited := make(chan error, 1)
		pid := backendPID(second)
		go func() {
			_, err := second.Exec(t.Context(), "select from ojs."+calls[1]+"($1)", id)
			waited <- err
		}()
		d.Blocked(pid)
		commit(t, first)
		sqlstate(t, <-waited, "OJ404", calls[1])
		rollback(t, second)
	}
}

// Age and number are kept by the clock in small steps; every tenant has its own number.
func TestDeadLettersArePruned(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	d.SetNow(noon)
	service, operator := d.Service(), d.Operator()
	old := bury(t, d, "acme", "q", "Old", 3)
	tick(t, service, 1000)
	d.SetNow(noon.AddDate(0, 0, 100))
	bury(t, d, "acme", "q", "New", 30)
	few := bury(t, d, "globex", "q", "New", 4)
	d.SetNow(noon.AddDate(0, 0, 179))
	tick(t, service, 1000)
	if got := one[int](t, service, "select ojs.dead_letter_count()::int"); got != 37 {
		t.Errorf("after 179 days %d dead letters are left", got)
	}
	now := noon.AddDate(0, 0, 180).Add(time.Second)
	d.SetNow(now)
	tick(t, service, 1000)
	if got := one[int](t, service, "select count(*)::int from ojs.job where id = any ($1)", old); got != 0 {
		t.Errorf("after 180 days %d of the old jobs are left", got)
	}
	for _, bad := range []string{"p_max_age => '0'", "p_max_age => '-1 day'", "p_max_count => 0", "p_max_count => 1000001"} {
		refused(t, operator, "OJ400", "select ojs.configure_dead_letters("+bad+")")
	}
	exec(t, operator, "select ojs.configure_dead_letters(p_max_count => 4)")
	rounds := 0
	for ; rounds < 20 && one[int](t, service, "select ojs.dead_letter_count(p_tenant => 'acme')::int") > 4; rounds++ {
		left := one[int](t, service, "select ojs.dead_letter_count()::int")
		tick(t, service, 10)
		if got := left - one[int](t, service, "select ojs.dead_letter_count()::int"); got > 10 {
			t.Errorf("one step removed %d", got)
		}
	}
	if rounds != 3 {
		t.Errorf("26 in steps of ten took %d steps", rounds)
	}
	tick(t, service, 1000)
	if got := one[int](t, service, "select ojs.dead_letter_count(p_tenant => 'acme')::int"); got != 4 {
		t.Errorf("acme has %d left", got)
	}
	if got := one[int](t, service, "select count(*)::int from ojs.dead_letters(p_tenant => 'globex') where id = any ($1)", few); got != 4 {
		t.Errorf("globex has %d left", got)
	}
	if got := one[string](t, service, "select ojs.dead_letter_stats() -> 'retention' ->> 'max_age'"); got != "P180D" {
		t.Errorf("the age is shown as %s", got)
	}
	if got := one[bool](t, service, `
		select (ojs.dead_letter_stats() -> 'retention' ->> 'next_prune_at')::timestamptz = ojs.now() + interval '5 minutes'`); !got {
		t.Error("the next round is not in five minutes")
	}
}

// A partition of finished jobs goes; the dead letters in it stay and can be listed, retried and deleted.
func TestDeadLettersOutliveTheirPartition(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service, operator := d.Service(), d.Operator()
	ids := bury(t, d, "acme", "q", "Timeout", 1200)
	enqueueFor(t, service, "done", "acme", 5)
	exec(t, service, "select ojs.ack(id) from ojs.fetch('{done}', 5)")
	cutAhead(t, d)
	now := time.Now().Add(time.Hour)
	d.SetNow(now)
	before := shards(t, service)
	steps := untilDone(t, operator, "select ojs.drop_finished($1)", now)
	if got := slices.Compact(steps); len(steps) != 4 || got[0] != "again: put 1000 dead letters aside" {
		t.Errorf("dropping took the steps %v", steps)
	}
	if got := one[int](t, d.Pool, "select count(*)::int from ojs.job"); got != 0 {
		t.Errorf("%d jobs are left", got)
	}
	if got := one[int](t, service, "select ojs.dead_letter_count()::int"); got != 1200 {
		t.Errorf("%d dead letters are left", got)
	}
	if got := one[int](t, service, "select count(*)::int from ojs.dead_letters(p_limit => 1000, p_max_bytes => 1)"); got != 1 {
		t.Errorf("a page of one byte holds %d", got)
	}
	exec(t, d.Pool, "update ojs.dead_job set tags = array_fill(repeat('x', 250), array[100])")
	if got := one[int](t, service, "select count(*)::int from ojs.dead_letters(p_limit => 1000, p_max_bytes => 100000)"); got != 3 {
		t.Errorf("a page of 100000 bytes holds %d with 25000 bytes of tags each", got)
	}
	if got := one[int](t, service, "select count(*)::int from ojs.dead_letters(p_limit => 1000)"); got != 1000 {
		t.Errorf("%d dead letters are listed", got)
	}
	if got := shards(t, service); !slices.Equal(got, before) {
		t.Errorf("the statistics are %v, were %v", got, before)
	}
	if got := oneJob(t, d.As("acme"), "ojs.dead_letter_info($1)", ids[7]); got.ID != ids[7] || got.State != "discarded" {
		t.Errorf("an old dead letter is %v", got)
	}
	if got := oneJob(t, service, "ojs.retry_dead_letter($1)", ids[7]); got.State != "available" {
		t.Errorf("retried, it is %v", got)
	}
	exec(t, service, "select from ojs.delete_dead_letter($1)", ids[8])
	// An id that is used again is the new job's, and the old one stays where it is until it is purged.
	exec(t, service, "select from ojs.enqueue('again', p_queue => 'new', p_id => $1, p_tenant => 'acme')", ids[9])
	refused(t, service, "OJ409", "select from ojs.retry_dead_letter($1)", ids[9])
	refused(t, service, "OJ409", "select from ojs.delete_dead_letter($1)", ids[9])
	if got := one[int](t, service, "select ojs.retry_dead_letters(p_limit => 100)"); got != 99 {
		t.Errorf("retried %d, want all but the one whose id is used again", got)
	}
	if got := one[int](t, service, "select ojs.purge_dead_letters(p_limit => 10000)"); got != 1099 {
		t.Errorf("purged %d", got)
	}
	if got := shards(t, service); !slices.Equal(got, []string{"acme done 0 0 0 5 0", "acme new 1 0 0 1 0", "acme q 100 0 1100 1200 1200"}) {
		t.Errorf("the statistics are %v", got)
	}
	if got := one[int](t, service, "select count(*)::int from ojs.fetch('{q}', 1000)"); got != 100 {
		t.Errorf("handed out %d", got)
	}
	if got := oneJob(t, service, "ojs.job_info($1)", ids[9]); got.State != "available" || got.Queue != "new" {
		t.Errorf("the job that has an old one's id is %v", got)
	}
}

// Rules retry what matches them after their delay, as often as they may, those buried before the rule and those after it.
func TestReplayRules(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	d.SetNow(noon)
	service, operator := d.Service(), d.Operator()
	for field, bad := range map[string]string{
		"name": "''", "delay": "'a', '0'", "max_replays": "'a', p_max_replays => 0", "of_tenant": "'a', p_of_tenant => '!'",
		"enabled": "'a', p_enabled => null",
	} {
		if got := detail(t, refused(t, operator, "OJ400", "select ojs.set_replay_rule("+bad+")")); got["field"] != field {
			t.Errorf("%s is refused for %v", bad, got["field"])
		}
	}
	refused(t, operator, "OJ404", "select ojs.delete_replay_rule('none')")
	refused(t, d.As("acme"), "42501", "select ojs.set_replay_rule('mine')")

	before := bury(t, d, "acme", "q", "Timeout", 3)
	other := bury(t, d, "globex", "q", "Timeout", 1)
	fatal := bury(t, d, "acme", "q", "Fatal", 1)
	// Failing while the rule is made, in a transaction that does not know it.
	late := one[string](t, service, `
		select id::text from ojs.enqueue('dead.job', p_queue => 'q', p_retry => $1::text::jsonb, p_tenant => 'acme')`, deadPolicy)
	oneJob(t, service, "ojs.fetch('{q}')")
	open := begin(t, service)
	exec(t, open, `select from ojs.nack($1, '{"message": "m", "type": "Timeout"}')`, late)

	exec(t, operator, "select ojs.set_replay_rule('flaky', '1 hour', 2, p_error_type => 'Timeout', p_of_tenant => 'acme')")
	exec(t, operator, "select ojs.set_replay_rule('off', '1 minute', 2, p_enabled => false)")
	tick(t, service, 1000)
	tick(t, service, 1000)
	if got := one[bool](t, d.Pool, "select caught_up from ojs.replay_rule where name = 'flaky'"); got {
		t.Error("the rule has caught up beside a transaction that does not know it")
	}
	commit(t, open)
	// Transactions in other databases of the cluster count, too.
	for !one[bool](t, d.Pool, "select caught_up from ojs.replay_rule where name = 'flaky'") {
		tick(t, service, 1000)
	}
	after := bury(t, d, "acme", "q", "Timeout", 2)

	count := func(ids []string) int {
		t.Helper()
		return one[int](t, service, "select count(*)::int from ojs.dead_letters(p_limit => 1000) where id = any ($1)", ids)
	}
	all := slices.Concat(before, after, []string{late})
	d.SetNow(noon.Add(59 * time.Minute))
	tick(t, service, 1000)
	if got := count(all); got != 6 {
		t.Errorf("before the delay has passed %d of 6 are left", got)
	}
	now := noon
	for replay := 1; replay <= 3; replay++ {
		now = now.Add(61 * time.Minute)
		d.SetNow(now)
		tick(t, service, 1000)
		left := 0
		if replay == 3 {
			left = 6
		}
		if got := count(all); got != left {
			t.Errorf("after replay %d, %d are dead letters, want %d", replay, got, left)
		}
		if replay < 3 {
			if got := list[string](t, service, `
				select distinct meta ->> 'ojs.replay_rule' || ' ' || (meta ->> 'ojs.replay_count')
				from ojs.fetch('{q}', 100)`); !slices.Equal(got, []string{fmt.Sprint("flaky ", replay)}) {
				t.Errorf("replay %d says %v", replay, got)
			}
			exec(t, service, `select ojs.nack(id, '{"message": "m", "type": "Timeout"}') from ojs.job where state = 'active'`)
		}
	}
	if got := count(slices.Concat(other, fatal)); got != 2 {
		t.Errorf("%d of the 2 that no rule is for are left", got)
	}
	exec(t, operator, "select ojs.delete_replay_rule('flaky')")
}

// What a rule is for and cannot be retried, because another job has got its id, does not keep the clock busy.
func TestReplayWaitsForAnIdThatIsUsedAgain(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service, operator := d.Service(), d.Operator()
	ids := bury(t, d, "acme", "q", "Timeout", 2)
	cutAhead(t, d)
	now := time.Now().Add(time.Hour)
	d.SetNow(now)
	untilDone(t, operator, "select ojs.drop_finished($1)", now)
	exec(t, service, "select from ojs.enqueue('again', p_queue => 'other', p_id => $1, p_tenant => 'acme')", ids[0])
	exec(t, operator, "select ojs.set_replay_rule('r', '1 second', 1000)")
	for !one[bool](t, d.Pool, "select caught_up from ojs.replay_rule") {
		tick(t, service, 1000)
	}
	replay := func(after time.Duration, want ...string) {
		t.Helper()
		now = now.Add(after)
		d.SetNow(now)
		tick(t, service, 1000)
		if got := list[string](t, d.Pool, "select id::text from ojs.dead_letter"); !slices.Equal(got, want) {
			t.Errorf("after %s dead letters are %q, want %q", after, got, want)
		}
		if got := one[int](t, d.Pool, `
			select count(*)::int from ojs.timer where kind = 'replay' and due_at < ojs.now() + interval '30 minutes'`); got != 0 {
			t.Errorf("after %s the clock is to look again soon", after)
		}
	}
	replay(time.Minute, ids[0])
	replay(time.Minute, ids[0])
	exec(t, d.Pool, "delete from ojs.job where type = 'again'")
	replay(time.Hour)
	if got := list[string](t, service, `
		select type || ' ' || (meta ->> 'ojs.replay_count') from ojs.jobs`); !slices.Equal(got, []string{"dead.job 1", "dead.job 1"}) {
		t.Errorf("the jobs are %q", got)
	}
}

// An id whose job was put aside is used again, and the new job becomes a dead letter, too: it takes the old one's place, and is put
// aside in its turn.
func TestAnIdIsBuriedTwice(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service, operator := d.Service(), d.Operator()
	id := bury(t, d, "acme", "q", "Timeout", 2)[0]
	cutAhead(t, d)
	now := time.Now().Add(time.Hour)
	d.SetNow(now)
	untilDone(t, operator, "select ojs.drop_finished($1)", now)
	exec(t, service, `
		select from ojs.enqueue('again', '[7]', 'q', p_retry => '{"max_attempts": 1, "on_exhaustion": "dead_letter"}',
			p_id => $1, p_tenant => 'acme')`, id)
	if got := lines(t, service, `
		select type, state::text from ojs.dead_letters()
		order by id`); !slices.Equal(got, []string{"dead.job discarded", "dead.job discarded"}) {
		t.Errorf("while the new job lives, the dead letters are %q", got)
	}
	exec(t, service, `select ojs.nack(id, '{"message": "m"}') from ojs.fetch('{q}')`)
	untilDone(t, operator, "select ojs.cut_partition($1)", now.Add(time.Second))
	now = now.Add(time.Hour)
	d.SetNow(now)
	untilDone(t, operator, "select ojs.drop_finished($1)", now)
	if got := lines(t, service, `
		select type, args::text from ojs.dead_letters() order by type`); !slices.Equal(got, []string{"again [7]", "dead.job [1]"}) {
		t.Errorf("dead letters are %q", got)
	}
	if got := one[int](t, d.Pool, "select count(*)::int from ojs.dead_job"); got != 2 {
		t.Errorf("%d are aside, want 2", got)
	}
	if got := oneJob(t, service, "ojs.retry_dead_letter($1)", id); got.State != "available" {
		t.Errorf("retried, it is %v", got)
	}
}
