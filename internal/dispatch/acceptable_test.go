package dispatch

import (
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// spellings returns texts that are just valid or just invalid as the name of a queue or a tenant of at
// most limit bytes: each byte alone, first, in the middle and last, and lengths around the limit.
func spellings(limit int) []string {
	all := []string{"", "_default", "_other", "_x", "_defaul", "_default2", "_Default", "_default\n", "x_other", "a..b", "a--b"}
	for c := range 256 {
		char := string([]byte{byte(c)})
		all = append(all, char, char+"b", "a"+char+"b", "a"+char)
	}
	for _, n := range []int{limit - 1, limit, limit + 1} {
		all = append(all, strings.Repeat("a", n), strings.Repeat("a", n-1)+"-", strings.Repeat("é", n), strings.Repeat("é", n/2))
	}
	return all
}

// edges returns requests that are just valid or just invalid.
func edges() map[string][]Fetch {
	all, q := map[string][]Fetch{}, []string{"q"}
	add := func(kind string, f Fetch) { all[kind] = append(all[kind], f) }
	for _, name := range spellings(256) {
		add("tenants", Fetch{Queues: q, Count: 1, Tenant: &name})
	}
	for _, name := range spellings(128) {
		add("queues", Fetch{Queues: []string{"q", name}, Count: 1})
		add("pools", Fetch{Queues: q, Count: 1, Pool: name})
	}
	for _, n := range []int{0, 1, 2, 99, 100, 101} {
		add("numbers of queues", Fetch{Queues: slices.Repeat(q, n), Count: 1})
	}
	for _, n := range []int{math.MinInt32, -1, 0, 1, 2, 999, 1000, 1001, 9999, 10000, 10001, math.MaxInt32} {
		add("counts", Fetch{Queues: q, Count: n})
	}
	for _, ms := range []int{math.MinInt32, -1, 0, 1, 999, 1000, 1001, 604799999, 604800000, 604800001, math.MaxInt32} {
		add("visibility timeouts", Fetch{Queues: q, Count: 1, VisibilityTimeoutMs: ms})
	}
	for _, name := range spellings(255) {
		add("workers", Fetch{Queues: q, Count: 1, WorkerID: name})
	}
	for _, strategy := range []string{"", "strict", "round-robin", "weighted", "least-loaded", "Strict", "strict ", "round_robin"} {
		add("strategies", Fetch{Queues: []string{"q", "r"}, Count: 1, Strategy: strategy})
	}
	for _, weights := range []string{
		`{}`, `[]`, `null`, `1`, `{"q": 1}`, `{"q": 0}`, `{"q": -1}`, `{"q": 1.0}`, `{"q": 1.5}`, `{"q": "1"}`, `{"q": null}`, `{"q": 1e3}`,
		`{"q": 1000000}`, `{"q": 1000001}`, `{"q": 99999999999999999999}`, `{"other": 1}`, `{"other": 0}`, `{"Not a name": 1}`,
		`{"q": {"q": 1}}`,
	} {
		add("weights", Fetch{Queues: []string{"q", "r"}, Count: 1, Strategy: "weighted", Weights: weights})
	}
	return all
}

// SQL accepts every request that Fetch.acceptable accepts. Such requests share decisions; if SQL refused
// one, all of them would be decided one by one.
func TestWhatIsAcceptableIsAcceptedBySQL(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for kind, requests := range edges() {
		acceptable := 0
		for _, f := range requests {
			if f.normalise(); f.isolated {
				continue
			}
			acceptable++
			key := groupKey{strategy: f.Strategy, weights: f.Weights, pool: f.Pool}
			p := part{g: &group{key: key, queues: f.Queues, tenant: f.Tenant}, requests: []*request{{Fetch: f}}}
			_, err := db.Pool.Exec(t.Context(), "select ojs._ask($1, $2, $3, $4, $5, 1, $6, $7, $8)", p.arguments()...)
			if err != nil {
				asked, _ := json.Marshal(f)
				t.Errorf("%s: SQL refuses %s (%v)", kind, asked, err)
			}
		}
		if acceptable == 0 || acceptable == len(requests) {
			t.Errorf("%d of %d %s are acceptable", acceptable, len(requests), kind)
		}
	}
	for _, tenant := range []string{"_default", "_other", "a.b:c_d-e"} {
		f := &Fetch{Queues: []string{"q"}, Count: 1, Tenant: &tenant}
		if f.normalise(); f.isolated {
			t.Errorf("requests for the tenant %s are decided each by itself", tenant)
		}
	}
}

// Requests that ask for the same in different forms share decisions.
func TestRequestsForTheSameAreEqual(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ one, other Fetch }{
		"the default":   {Fetch{}, Fetch{Strategy: "round-robin", Weights: `{"q": 3}`}},
		"other weights": {Fetch{Strategy: "strict"}, Fetch{Strategy: "strict", Weights: `{"q": 3}`}},
		"another order": {
			Fetch{Strategy: "weighted", Weights: `{"q":3,"r":2}`}, Fetch{Strategy: "weighted", Weights: `{"r": 2, "elsewhere": 9, "q": 3}`},
		},
		"one queue": {Fetch{Queues: []string{"q"}}, Fetch{Queues: []string{"q"}, Strategy: "weighted", Weights: `{"q": 3}`}},
	} {
		c.one.Count, c.other.Count = 1, 1
		if c.one.Queues == nil {
			c.one.Queues, c.other.Queues = []string{"q", "r"}, []string{"q", "r"}
		}
		c.one.normalise()
		c.other.normalise()
		if c.one.Strategy != c.other.Strategy || c.one.Weights != c.other.Weights || c.one.isolated || c.other.isolated {
			t.Errorf("%s: %+v and %+v", name, c.one, c.other)
		}
	}
}
