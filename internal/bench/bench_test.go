//go:build unix

package bench

import (
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// turns returns a stretch of responses, one after the other, step apart. A letter is a job of the
// tenant with that letter.
func turns(arrived []int64, step int64, responses ...string) stretch {
	s := stretch{arrived: arrived, responses: len(responses)}
	for i, r := range responses {
		for _, c := range r {
			s.sequence = append(s.sequence, dispatched{tenant: c - 'a', response: int32(i), at: int64(i) * step})
		}
	}
	return s
}

func near(a, b float64) bool { return math.Abs(a-b) < 1e-6 }

func TestFairnessOfSequences(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		weights  []float64
		stretch  []stretch
		want     Fairness
		windowed bool
	}{
		{
			// After one job, a is half a job ahead and b half a job behind; the second makes it even.
			name: "two equal tenants in turn", weights: []float64{1, 1},
			stretch: []stretch{turns([]int64{10, 10}, 1, "ab", "ab", "ab")},
			want:    Fairness{ShareErrorPP: 0, MaxLagQuanta: 0.5, ResponseShareError: 0, Dispatches: 6},
		},
		{
			// In sum even, in order not: after three jobs of a, b is owed one and a half.
			name: "averages hide the order", weights: []float64{1, 1},
			stretch: []stretch{turns([]int64{10, 10}, 1, "aaa", "bbb")},
			want:    Fairness{ShareErrorPP: 0, MaxLagQuanta: 1.5, ResponseShareError: 1.5, Dispatches: 6},
		},
		{
			// 4 of 6 jobs where 3 were due: one job of six. After five, 4 where 2.5 were due.
			name: "a share too large", weights: []float64{1, 1},
			stretch: []stretch{turns([]int64{10, 10}, 1, "aab", "aab")},
			want:    Fairness{ShareErrorPP: 100.0 / 6, MaxLagQuanta: 1.5, ResponseShareError: 0.5, Dispatches: 6},
		},
		{
			// 3:1. After a, b, a the weights want 2.25 and 0.75; the worst moment is after b: 1.5 - 1 = 0.5 owed to a.
			name: "weights", weights: []float64{3, 1},
			stretch: []stretch{turns([]int64{10, 10}, 1, "a", "b", "a", "a")},
			want:    Fairness{ShareErrorPP: 0, MaxLagQuanta: 0.5, ResponseShareError: 0.75, Dispatches: 4},
		},
		{
			// b has one job only; afterwards everything is due to a.
			name: "a tenant leaves", weights: []float64{1, 1},
			stretch: []stretch{turns([]int64{10, 1}, 1, "ab", "aaaa")},
			want:    Fairness{ShareErrorPP: 0, MaxLagQuanta: 0.5, ResponseShareError: 0, Dispatches: 6},
		},
		{
			// b comes late and begins at the present: nothing is owed to it for the time before.
			name: "a tenant joins", weights: []float64{1, 1},
			stretch: []stretch{
				turns([]int64{10, 0}, 1, "aaaa"),
				turns([]int64{0, 10}, 1, "ab", "ab"),
			},
			want: Fairness{ShareErrorPP: 0, MaxLagQuanta: 0.5, ResponseShareError: 0, Dispatches: 8},
		},
		{
			// The seconds that begin with the first three decisions are whole: aab, aba and bab. The worst is off by half a job of three.
			name: "seconds", weights: []float64{1, 1}, windowed: true,
			stretch: []stretch{turns([]int64{10, 10}, 400_000, "a", "a", "b", "a", "b", "b")},
			want: Fairness{
				ShareErrorPP: 0, ShareError1sPP: 100.0 / 6, MaxLagQuanta: 1, ResponseShareError: 0.5, Dispatches: 6, Windows: 3,
			},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got, err := judge(c.weights, c.stretch)
			if err != nil {
				t.Fatal(err)
			}
			if !c.windowed {
				got.ShareError1sPP, got.Windows = 0, 0
			}
			g, w := reflect.ValueOf(got), reflect.ValueOf(c.want)
			for i := range g.NumField() {
				a, b := g.Field(i), w.Field(i)
				same := a.Equal(b)
				if a.Kind() == reflect.Float64 {
					same = math.Abs(a.Float()-b.Float()) < 1e-4
				}
				if !same {
					t.Errorf("%s: %v, want %v", g.Type().Field(i).Name, a, b)
				}
			}
		})
	}
}

func TestASequenceThatCannotBe(t *testing.T) {
	t.Parallel()
	if _, err := judge([]float64{1, 1}, []stretch{turns([]int64{1, 1}, 1, "aa")}); err == nil {
		t.Error("a tenant was served more jobs than it had, and nobody noticed")
	}
}

// fluid.dispatch judges the lag of a tenant only when a job of that tenant is dispatched. The result
// must be the worst over all prefixes.
func TestLagIsTheWorstOverEveryPrefix(t *testing.T) {
	t.Parallel()
	weights := []float64{10, 5, 1}
	backlog := []int64{1000, 1000, 1000}
	order := "abacabaaabbbacbaabaaaabbbbbbcaabcabcabcaaaaaaaaabbbbbbbbbc"
	got, err := judge(weights, []stretch{turns(backlog, 1, strings.Split(order, "")...)})
	if err != nil {
		t.Fatal(err)
	}
	worst := 0.0
	served := make([]float64, 3)
	for k, c := range order {
		served[c-'a']++
		for i, w := range weights {
			worst = max(worst, math.Abs(served[i]-float64(k+1)*w/16))
		}
	}
	if math.Abs(got.MaxLagQuanta-worst) > 1e-4 {
		t.Errorf("largest lag %v, want %v", got.MaxLagQuanta, worst)
	}
}

// Two callers fetched at the same time and got every other job each: the sequence is fair, but each
// response holds jobs of one tenant only.
func TestResponsesThatTookTurns(t *testing.T) {
	t.Parallel()
	s := stretch{arrived: []int64{10, 10}, responses: 2}
	for i := range 8 {
		s.sequence = append(s.sequence, dispatched{tenant: int32(i % 2), response: int32(i % 2), at: 1})
	}
	got, err := judge([]float64{1, 1}, []stretch{s})
	if err != nil {
		t.Fatal(err)
	}
	if got.MaxLagQuanta != 0.5 || got.ResponseShareError != 2 {
		t.Errorf("lag %v, within a response %v; want 0.5 and 2", got.MaxLagQuanta, got.ResponseShareError)
	}
}

func TestSequenceIsInTurnAndItsTimesDoNotFall(t *testing.T) {
	t.Parallel()
	got := inTurn([]turn{{7, dispatched{1, 0, 30}}, {3, dispatched{0, 1, 10}}, {9, dispatched{2, 2, 20}}, {5, dispatched{3, 1, 10}}})
	want := []dispatched{{0, 1, 10}, {3, 1, 10}, {1, 0, 30}, {2, 2, 30}}
	if !slices.Equal(got, want) {
		t.Errorf("sequence %v, want %v", got, want)
	}
}

func TestMedianAndWhereItLies(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		values     []float64
		median     float64
		low, high  float64
		confidence float64
	}{
		{[]float64{5}, 5, 5, 5, 0},
		{[]float64{3, 1, 2}, 2, 1, 3, 0.75},
		{[]float64{6, 1, 5, 2, 4, 3}, 3.5, 1, 6, 0.9688},
		{[]float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 5.5, 2, 9, 0.9785},
		{[]float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20}, 10.5, 6, 15, 0.9586},
	} {
		if got := median(c.values); got != c.median {
			t.Errorf("median of %v is %v, want %v", c.values, got, c.median)
		}
		if got, want := medianInterval(c.values), (Interval{c.low, c.high, c.confidence}); got != want {
			t.Errorf("interval of %v is %v, want %v", c.values, got, want)
		}
	}
}

func TestQuantiles(t *testing.T) {
	t.Parallel()
	var all times
	for i := 100; i >= 0; i-- {
		all = append(all, time.Duration(i)*time.Millisecond)
	}
	if p50, p99 := all.ms(0.5), all.ms(0.99); !near(p50, 50) || !near(p99, 99) {
		t.Errorf("p50 %v, p99 %v, want 50 and 99", p50, p99)
	}
	if got := quantile([]float64{1, 2}, 0.25); !near(got, 1.25) {
		t.Errorf("a quarter of the way from 1 to 2 is %v", got)
	}
	if got := times(nil).ms(0.5); got != 0 {
		t.Errorf("the median of nothing is written as %v", got)
	}
}

func TestPopulations(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		tenants int
		zipf    bool
		weights []float64
		shares  []float64
	}{
		{3, false, []float64{10, 5, 1}, []float64{0.625, 0.3125, 0.0625}},
		{2, false, []float64{1, 1}, []float64{0.5, 0.5}},
		{3, true, []float64{1, 1, 1}, []float64{6.0 / 11, 3.0 / 11, 2.0 / 11}},
	} {
		got := newPopulation(c.tenants, c.zipf)
		if !slices.Equal(got.weights, c.weights) || !slices.EqualFunc(got.shares, c.shares, near) {
			t.Errorf("%d tenants, zipf %t: weights %v, shares %v; want %v, %v",
				c.tenants, c.zipf, got.weights, got.shares, c.weights, c.shares)
		}
	}
}

func TestArgsAreJSONOfTheirSize(t *testing.T) {
	t.Parallel()
	for _, size := range []int{5, 100, 4096} {
		for _, args := range makeArgs(size) {
			if len(args) != size || !strings.HasPrefix(args, `["`) || !strings.HasSuffix(args, `"]`) {
				t.Fatalf("args of %d bytes: %q", size, args)
			}
		}
	}
}

// A tenant that comes and goes is judged also after its last job: a job that is early counts like one
// that is late.
func TestLagWhereTenantsComeAndGo(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name       string
		weight     float64
		arrived    [][]int64 // by response, of the small tenants
		sequence   []int32   // a response each
		big, small float64
	}{
		// It waits for one dispatch, of which half was due to each.
		{"late", 1, [][]int64{{1}, {0}}, []int32{0, 1}, 0.5, 0.5},
		// It gets three jobs in a row where one and a half were due, and has no work afterwards.
		{"early, and then gone", 1, [][]int64{{3}, {0}, {0}, {0}}, []int32{1, 1, 1, 0}, 1.5, 1.5},
		// It comes before the third dispatch and gets the fifth: its whole job was due in the two between.
		{"after a time alone", 1, [][]int64{{0}, {0}, {1}, {0}, {0}}, []int32{0, 0, 0, 0, 1}, 1, 1},
		// 2:1:1. Both small ones go first, and half of that was due to the big one.
		{"those who join go first", 2, [][]int64{{1, 1}, {0, 0}, {0, 0}}, []int32{1, 2, 0}, 1, 0.75},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			run := &churning{scenario: &ChurnScenario{Bound: 1, SmallBound: 1}, people: newPopulation(len(c.arrived[0])+1, true)}
			run.people.weights[0] = c.weight
			var sequence []dispatched
			for i, tenant := range c.sequence {
				run.arrived = append(run.arrived, append([]int64{0}, c.arrived[i]...))
				sequence = append(sequence, dispatched{tenant: tenant, response: int32(i)})
			}
			if err := run.judge(sequence, 100); err != nil {
				t.Fatal(err)
			}
			if s := run.scenario; s.MaxLag != c.big || s.SmallMaxLag != c.small || s.Within != (c.big <= 1 && c.small <= 1) {
				t.Errorf("lags %v and %v, within bounds %t; want %v and %v", s.MaxLag, s.SmallMaxLag, s.Within, c.big, c.small)
			}
		})
	}
}
