package dispatch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// turns is a combiner that echoes, and that runs when it is told to.
func echoing(c *combiner[string, string]) (ran chan []string, gate chan error) {
	ran, gate = make(chan []string, 100), make(chan error, 100)
	c.run = func(_ context.Context, in []string) ([]string, error) {
		ran <- slices.Clone(in)
		if err := <-gate; err != nil {
			return nil, err
		}
		return in, nil
	}
	c.limit = 1 << 40
	return ran, gate
}

func one(*string) int { return 1 }

func (c *combiner[T, R]) inLine(n int) {
	for {
		c.mu.Lock()
		total := 0
		for _, l := range c.lines {
			total += len(l.items)
		}
		c.mu.Unlock()
		if total == n {
			return
		}
	}
}

func TestLinesTakeTurns(t *testing.T) {
	t.Parallel()
	c := &combiner[string, string]{most: 4, bytes: 100, flights: 1}
	ran, gate := echoing(c)
	var all sync.WaitGroup
	call := func(line string, items ...string) {
		all.Go(func() {
			out, errs := c.do(t.Context(), line, items, one)
			if !slices.Equal(out, items) || slices.ContainsFunc(errs, func(err error) bool { return err != nil }) {
				t.Errorf("%v became %v %v", items, out, errs)
			}
		})
	}
	call("x", "x0")
	if got := <-ran; !slices.Equal(got, []string{"x0"}) {
		t.Fatal(got)
	}
	call("a", "a1", "a2", "a3", "a4", "a5")
	c.inLine(5)
	call("b", "b1", "b2")
	c.inLine(7)
	call("c", "c1")
	c.inLine(8)
	for _, want := range [][]string{{"a1", "b1", "c1", "a2"}, {"b2", "a3", "a4", "a5"}} {
		gate <- nil
		if got := <-ran; !slices.Equal(got, want) {
			t.Errorf("ran %v, want %v", got, want)
		}
	}
	gate <- nil
	all.Wait()
	c.wait()
	if len(c.lines) > 0 {
		t.Errorf("%d lines are left", len(c.lines))
	}
}

func TestStatementsAreBoundedBySize(t *testing.T) {
	t.Parallel()
	c := &combiner[string, string]{most: 100, bytes: 10, flights: 1}
	ran, gate := echoing(c)
	go func() {
		for range 4 {
			gate <- nil
		}
	}()
	in := []string{"123456", "1234", "1", "12345678901234567890"}
	out, _ := c.do(t.Context(), "a", in, func(s *string) int { return len(*s) })
	if !slices.Equal(out, in) {
		t.Errorf("%v", out)
	}
	for _, want := range [][]string{in[:2], in[2:3], in[3:]} {
		if got := <-ran; !slices.Equal(got, want) {
			t.Errorf("ran %v, want %v", got, want)
		}
	}
}

func TestOneOfManyGetsTheError(t *testing.T) {
	t.Parallel()
	for _, apart := range []bool{false, true} {
		c := &combiner[string, string]{most: 100, bytes: 100, flights: 2, limit: 1 << 40, apart: apart}
		c.run = func(_ context.Context, in []string) ([]string, error) {
			if slices.Contains(in, "bad") {
				return nil, &pgconn.PgError{Code: "22P02"}
			}
			return in, nil
		}
		in := []string{"1", "2", "3", "bad", "5", "6", "7"}
		out, errs := c.do(t.Context(), "a", in, one)
		for i := range in {
			if bad := in[i] == "bad"; bad != (errs[i] != nil) || !bad && out[i] != in[i] {
				t.Errorf("%s became %q, %v", in[i], out[i], errs[i])
			}
		}
		// What concerns all, all get.
		c.run = func(context.Context, []string) ([]string, error) { return nil, &pgconn.PgError{Code: "57P01"} }
		if _, errs := c.do(t.Context(), "a", in, one); slices.Contains(errs, nil) {
			t.Errorf("%v", errs)
		}
	}
}

func TestSerializationFailuresAreTriedAgain(t *testing.T) {
	t.Parallel()
	c := &combiner[string, string]{most: 100, bytes: 100, flights: 1, limit: 1 << 40}
	failures := 2
	c.run = func(_ context.Context, in []string) ([]string, error) {
		if failures--; failures >= 0 {
			return nil, &pgconn.PgError{Code: "40P01"}
		}
		return in, nil
	}
	if _, errs := c.do(t.Context(), "a", []string{"x"}, one); errs[0] != nil {
		t.Error(errs)
	}
}

func TestALineApartWaitsForItsOwnStatementOnly(t *testing.T) {
	t.Parallel()
	c := &combiner[string, string]{most: 2, bytes: 100, flights: 2, apart: true}
	ran, gate := echoing(c)
	var all sync.WaitGroup
	call := func(line string, items ...string) {
		all.Go(func() { _, _ = c.do(t.Context(), line, items, one) })
	}
	call("a", "a1", "a2", "a3")
	if got := <-ran; !slices.Equal(got, []string{"a1", "a2"}) {
		t.Fatal(got)
	}
	call("b", "b1")
	if got := <-ran; !slices.Equal(got, []string{"b1"}) {
		t.Fatal(got)
	}
	call("b", "b2")
	call("c", "c1")
	c.inLine(3)
	seen := map[string]int{}
	for range 3 {
		gate <- nil
		got := <-ran
		seen[fmt.Sprint(got)]++
	}
	gate <- nil
	gate <- nil
	all.Wait()
	if len(seen) != 3 || seen["[a3]"]+seen["[b2]"]+seen["[c1]"] != 3 {
		t.Errorf("%v", seen)
	}
}

func TestWhatWasNotSentIsWithdrawn(t *testing.T) {
	t.Parallel()
	c := &combiner[string, string]{most: 1, bytes: 100, flights: 1}
	ran, gate := echoing(c)
	ctx, cancel := context.WithCancel(t.Context())
	var errs []error
	var all sync.WaitGroup
	all.Go(func() { _, errs = c.do(ctx, "a", []string{"1", "2"}, one) })
	<-ran
	cancel()
	all.Wait()
	if errors.Is(errs[0], errWithdrawn) || !errors.Is(errs[1], errWithdrawn) {
		t.Errorf("%v", errs)
	}
	gate <- nil
	c.wait()
	if len(ran) > 0 {
		t.Errorf("ran %v", <-ran)
	}
}

func TestHalvesOfThoseWhoLeftAreNotTried(t *testing.T) {
	t.Parallel()
	c := &combiner[string, string]{most: 8, bytes: 100, flights: 1}
	ran, gate := echoing(c)
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() { _, _ = c.do(t.Context(), "a", []string{"1", "2"}, one) })
	<-ran
	left := make(chan struct{})
	go func() {
		defer close(left)
		_, _ = c.do(ctx, "a", []string{"3", "4", "5"}, one)
	}()
	c.inLine(3)
	all.Go(func() {
		if out, errs := c.do(t.Context(), "a", []string{"6"}, one); out[0] != "6" || errs[0] != nil {
			t.Errorf("%v %v", out, errs)
		}
	})
	c.inLine(4)
	gate <- nil
	<-ran
	cancel()
	<-left
	gate <- &pgconn.PgError{Code: "22P02"}
	if got := <-ran; !slices.Equal(got, []string{"6"}) {
		t.Errorf("ran %v", got)
	}
	gate <- nil
	all.Wait()
	c.wait()
}

// A lock is somebody's: waiting for it again and again to find out whose helps nobody.
func TestALockInTheWayIsMetOnce(t *testing.T) {
	t.Parallel()
	c := &combiner[string, string]{most: 100, bytes: 100, flights: 1}
	ran, gate := echoing(c)
	gate <- &pgconn.PgError{Code: "55P03"}
	_, errs := c.do(t.Context(), "a", []string{"1", "2", "3"}, one)
	if len(ran) != 1 || slices.Contains(errs, nil) {
		t.Errorf("%d statements, %v", len(ran), errs)
	}
}

// A statement that gets stuck does not hold up the others; one that does not is not divided.
func TestAFlightTakesOffBesideAnotherOnlyLater(t *testing.T) {
	t.Parallel()
	c := &combiner[string, string]{most: 100, bytes: 100, flights: 2, spacing: time.Hour}
	ran, gate := echoing(c)
	var all sync.WaitGroup
	call := func(item string) {
		all.Go(func() { _, _ = c.do(t.Context(), item, []string{item}, one) })
	}
	call("1")
	<-ran
	call("2")
	c.inLine(1)
	call("3")
	c.inLine(2)
	gate <- nil
	if got := <-ran; len(got) != 2 {
		t.Errorf("ran %v", got)
	}
	c.mu.Lock()
	c.spacing = time.Millisecond // what is planned is an hour away, so
	c.armed = false
	c.mu.Unlock()
	call("4")
	if got := <-ran; !slices.Equal(got, []string{"4"}) {
		t.Errorf("ran %v", got)
	}
	gate <- nil
	gate <- nil
	all.Wait()
	c.wait()

	// What was planned beside others keeps nobody who is alone.
	c.mu.Lock()
	c.armed = true
	c.mu.Unlock()
	call("5")
	<-ran
	gate <- nil
	all.Wait()
}
