//go:build unix

package bench

import (
	"math"
	"slices"
	"time"
)

// quantile returns a quantile of sorted values, interpolated between the two nearest. It returns NaN if
// there are none.
func quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return math.NaN()
	}
	at := q * float64(len(sorted)-1)
	low := int(at)
	if low+1 >= len(sorted) {
		return sorted[len(sorted)-1]
	}
	return sorted[low] + (at-float64(low))*(sorted[low+1]-sorted[low])
}

func median(values []float64) float64 {
	return quantile(slices.Sorted(slices.Values(values)), 0.5)
}

// Interval is a confidence interval of the median. Its ends are values of slices, so it holds for any
// distribution.
type Interval struct {
	Low        float64 `json:"low"`
	High       float64 `json:"high"`
	Confidence float64 `json:"confidence"`
}

// medianInterval returns the narrowest pair of order statistics, equally far from both ends, that holds
// the median with a probability of at least 95 %. Fewer than six values cannot give that much: then it
// is the lowest and the highest value, with the confidence that they have.
func medianInterval(values []float64) Interval {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	if n == 0 {
		return Interval{math.NaN(), math.NaN(), 0}
	}
	// The median is below the k-th lowest with the probability that fewer than k of n tosses fall below it.
	below := func(k int) float64 {
		p := 0.0
		for i := range k {
			a, _ := math.Lgamma(float64(n + 1))
			b, _ := math.Lgamma(float64(i + 1))
			c, _ := math.Lgamma(float64(n - i + 1))
			p += math.Exp(a - b - c - float64(n)*math.Ln2)
		}
		return p
	}
	k := 1
	for k+1 <= n/2 && 1-2*below(k+1) >= 0.95 {
		k++
	}
	return Interval{round(sorted[k-1], 4), round(sorted[n-k], 4), round(max(0, 1-2*below(k)), 4)}
}

// round rounds to a number of decimals.
func round(v float64, decimals int) float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return 0
	}
	scale := math.Pow(10, float64(decimals))
	return math.Round(v*scale) / scale
}

// times holds latencies of one kind.
type times []time.Duration

// ms returns a quantile in milliseconds.
func (t times) ms(q float64) float64 {
	sorted := make([]float64, len(t))
	for i, d := range t {
		sorted[i] = d.Seconds() * 1000
	}
	slices.Sort(sorted)
	return round(quantile(sorted, q), 3)
}
