package db_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// A result is there for as long as result_ttl says, counted from the end of the job; then the job is there without it.
func TestResultsAreKeptForTheirTime(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	d.SetNow(noon)
	service := d.Service()
	ids := map[string]string{}
	for name, call := range map[string]string{
		"default": "", "never": `, p_options => '{"result_ttl": 0}'`, "hour": `, p_extra => '{"result_ttl": 3600}'`,
		"ever": `, p_options => '{"result_ttl": -1}'`,
		"both": `, p_options => '{"result_ttl": 3600}', p_extra => '{"result_ttl": 1}'`,
	} {
		ids[name] = one[string](t, service, "select id::text from ojs.enqueue('a', p_tenant => 'acme'"+call+")")
		oneJob(t, service, "ojs.fetch('{default}')")
		exec(t, service, `select from ojs.ack($1, p_result => '{"a": 1.50}')`, ids[name])
	}
	for _, c := range []struct {
		after time.Duration
		there string
	}{
		{0, "both default ever hour"},
		{time.Hour - time.Millisecond, "both default ever hour"},
		{time.Hour, "default ever"},
		{7*24*time.Hour - time.Millisecond, "default ever"},
		{7 * 24 * time.Hour, "ever"},
		{100000 * time.Hour, "ever"},
	} {
		d.SetNow(noon.Add(c.after))
		var there, info []string
		for name, id := range ids {
			got := lines(t, service, "select result::text, pruned, result_size_bytes from ojs.job_results(array[$1::uuid])", id)
			switch {
			case slices.Equal(got, []string{`{"a": 1.50} false 11`}):
				there = append(there, name)
			case !slices.Equal(got, []string{`- true 11`}):
				t.Errorf("%s after %s: %v", name, c.after, got)
			}
			if one[bool](t, service, "select result is not null from ojs.job_info($1)", id) {
				info = append(info, name)
			}
		}
		slices.Sort(there)
		slices.Sort(info)
		if strings.Join(there, " ") != c.there || strings.Join(info, " ") != c.there {
			t.Errorf("after %s there are %v and %v, want %s", c.after, there, info, c.there)
		}
	}
	all := list[string](t, service, "select id::text from ojs.job")
	if got := one[int](t, d.As("globex"), "select count(*)::int from ojs.job_results($1)", all); got != 0 {
		t.Errorf("globex reads %d results of acme", got)
	}
	if got := one[int](t, d.As("globex"), "select count(*)::int from ojs.results"); got != 0 {
		t.Errorf("globex reads %d results of acme", got)
	}
	if got := one[int](t, d.As("acme"), "select count(*)::int from ojs.job_results($1)", all); got != len(all) {
		t.Errorf("acme reads %d of its results", got)
	}
	refused(t, d.As("globex"), "OJ403", "select from ojs.job_results('{}', 'acme')")
	refused(t, service, "OJ400", "select from ojs.job_results(null)")
	refused(t, service, "OJ413", "select from ojs.job_results($1, p_max_bytes => 2)", all)
	refused(t, service, "OJ400", "select from ojs.job_results(array(select gen_random_uuid() from generate_series(1, 1001)))")
	for _, bad := range []string{"-2", "1.5", `"7"`, "315360001", "99999999999", "{}"} {
		for field, call := range map[string]string{"options.result_ttl": "p_options", "result_ttl": "p_extra"} {
			if got := detail(t, refused(t, service, "OJ400", "select from ojs.enqueue('a', "+call+" => $1::text::json)",
				`{"result_ttl": `+bad+`}`)); got["field"] != field {
				t.Errorf("result_ttl %s is refused for %v", bad, got["field"])
			}
		}
	}
}
