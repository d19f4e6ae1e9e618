package batch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/ojs-pg/ojs-pg/internal/guard"
	"github.com/ojs-pg/ojs-pg/internal/pg"
)

// echoing makes a Batcher that echoes. Each statement tells what it has, and ends when gate says
// how.
func echoing(opts Options) (b *Batcher[string, string], ran chan []string, gate chan error) {
	ran, gate = make(chan []string, 100), make(chan error, 100)
	opts.Timeout = time.Hour
	return New(opts, func(_ context.Context, in []string) ([]string, error) {
		ran <- slices.Clone(in)
		if err := <-gate; err != nil {
			return nil, err
		}
		return in, nil
	}), ran, gate
}

func one(*string) int { return 1 }

// inLine waits until so many items wait to be sent.
func (b *Batcher[T, R]) inLine(t *testing.T, n int) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); b.Waiting() != n; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d items wait, not %d", b.Waiting(), n)
		}
	}
}

func TestLinesTakeTurns(t *testing.T) {
	t.Parallel()
	c, ran, gate := echoing(Options{Items: 4, Bytes: 100, Statements: 1})
	var all sync.WaitGroup
	call := func(line string, items ...string) {
		all.Go(func() {
			out, errs := c.Do(t.Context(), line, items, one)
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
	c.inLine(t, 5)
	call("b", "b1", "b2")
	c.inLine(t, 7)
	call("c", "c1")
	c.inLine(t, 8)
	for _, want := range [][]string{{"a1", "b1", "c1", "a2"}, {"b2", "a3", "a4", "a5"}} {
		gate <- nil
		if got := <-ran; !slices.Equal(got, want) {
			t.Errorf("ran %v, want %v", got, want)
		}
	}
	gate <- nil
	all.Wait()
	c.Wait()
	if len(c.queues) > 0 {
		t.Errorf("%d lines are left", len(c.queues))
	}
}

func TestStatementsAreBoundedBySize(t *testing.T) {
	t.Parallel()
	c, ran, gate := echoing(Options{Items: 100, Bytes: 10, Statements: 1})
	go func() {
		for range 4 {
			gate <- nil
		}
	}()
	in := []string{"123456", "1234", "1", "12345678901234567890"}
	out, _ := c.Do(t.Context(), "a", in, func(s *string) int { return len(*s) })
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
	for _, isolated := range []bool{false, true} {
		opts := Options{Items: 100, Bytes: 100, Statements: 2, Timeout: time.Hour, Isolated: isolated}
		c := New(opts, func(_ context.Context, in []string) ([]string, error) {
			if slices.Contains(in, "bad") {
				return nil, &pgconn.PgError{Code: "22P02"}
			}
			return in, nil
		})
		in := []string{"1", "2", "3", "bad", "5", "6", "7"}
		out, errs := c.Do(t.Context(), "a", in, one)
		for i := range in {
			if bad := in[i] == "bad"; bad != (errs[i] != nil) || !bad && out[i] != in[i] {
				t.Errorf("%s became %q, %v", in[i], out[i], errs[i])
			}
		}
		// An error that concerns the whole statement is everybody's.
		c.run = func(context.Context, []string) ([]string, error) { return nil, &pgconn.PgError{Code: "57P01"} }
		if _, errs := c.Do(t.Context(), "a", in, one); slices.Contains(errs, nil) {
			t.Errorf("%v", errs)
		}
	}
}

func TestSerializationFailuresAreTriedAgain(t *testing.T) {
	t.Parallel()
	failures := 2
	opts := Options{Items: 100, Bytes: 100, Statements: 1, Timeout: time.Hour}
	c := New(opts, func(_ context.Context, in []string) ([]string, error) {
		if failures--; failures >= 0 {
			return nil, &pgconn.PgError{Code: "40P01"}
		}
		return in, nil
	})
	if _, errs := c.Do(t.Context(), "a", []string{"x"}, one); errs[0] != nil {
		t.Error(errs)
	}
}

func TestALineApartWaitsForItsOwnStatementOnly(t *testing.T) {
	t.Parallel()
	c, ran, gate := echoing(Options{Items: 2, Bytes: 100, Statements: 2, Isolated: true})
	var all sync.WaitGroup
	call := func(line string, items ...string) {
		all.Go(func() { _, _ = c.Do(t.Context(), line, items, one) })
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
	c.inLine(t, 3)
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
	c, ran, gate := echoing(Options{Items: 1, Bytes: 100, Statements: 1})
	ctx, cancel := context.WithCancel(t.Context())
	var errs []error
	var all sync.WaitGroup
	all.Go(func() { _, errs = c.Do(ctx, "a", []string{"1", "2"}, one) })
	<-ran
	cancel()
	all.Wait()
	if errors.Is(errs[0], ErrNotSent) || !errors.Is(errs[1], ErrNotSent) {
		t.Errorf("%v", errs)
	}
	gate <- nil
	c.Wait()
	if len(ran) > 0 {
		t.Errorf("ran %v", <-ran)
	}
}

func TestHalvesOfThoseWhoLeftAreNotTried(t *testing.T) {
	t.Parallel()
	c, ran, gate := echoing(Options{Items: 8, Bytes: 100, Statements: 1})
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() { _, _ = c.Do(t.Context(), "a", []string{"1", "2"}, one) })
	<-ran
	left := make(chan struct{})
	go func() {
		defer close(left)
		_, _ = c.Do(ctx, "a", []string{"3", "4", "5"}, one)
	}()
	c.inLine(t, 3)
	all.Go(func() {
		if out, errs := c.Do(t.Context(), "a", []string{"6"}, one); out[0] != "6" || errs[0] != nil {
			t.Errorf("%v %v", out, errs)
		}
	})
	c.inLine(t, 4)
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
	c.Wait()
}

// A lock is somebody's: waiting for it again and again to find out whose helps nobody.
func TestALockInTheWayIsMetOnce(t *testing.T) {
	t.Parallel()
	c, ran, gate := echoing(Options{Items: 100, Bytes: 100, Statements: 1})
	gate <- &pgconn.PgError{Code: "55P03"}
	_, errs := c.Do(t.Context(), "a", []string{"1", "2", "3"}, one)
	if len(ran) != 1 || slices.Contains(errs, nil) {
		t.Errorf("%d statements, %v", len(ran), errs)
	}
}

// A statement that gets stuck does not hold up the others; one that does not is not divided.
func TestAFlightTakesOffBesideAnotherOnlyLater(t *testing.T) {
	t.Parallel()
	c, ran, gate := echoing(Options{Items: 100, Bytes: 100, Statements: 2, Spacing: time.Hour})
	var all sync.WaitGroup
	call := func(item string) {
		all.Go(func() { _, _ = c.Do(t.Context(), item, []string{item}, one) })
	}
	call("1")
	<-ran
	call("2")
	c.inLine(t, 1)
	call("3")
	c.inLine(t, 2)
	gate <- nil
	if got := <-ran; len(got) != 2 {
		t.Errorf("ran %v", got)
	}
	c.mu.Lock()
	c.opts.Spacing = time.Millisecond
	c.nextStart.Stop() // it is an hour away
	c.nextStart = nil
	c.mu.Unlock()
	call("4")
	if got := <-ran; !slices.Equal(got, []string{"4"}) {
		t.Errorf("ran %v", got)
	}
	gate <- nil
	gate <- nil
	all.Wait()
	c.Wait()
}

// A start that is planned beside other statements does not keep a caller waiting who finds none in
// flight.
func TestAPlannedStartKeepsNobodyWaitingWhoIsAlone(t *testing.T) {
	t.Parallel()
	c, ran, gate := echoing(Options{Items: 100, Bytes: 100, Statements: 2, Spacing: time.Hour})
	c.mu.Lock()
	c.nextStart = time.AfterFunc(time.Hour, func() {})
	c.mu.Unlock()
	var all sync.WaitGroup
	all.Go(func() { _, _ = c.Do(t.Context(), "a", []string{"5"}, one) })
	<-ran
	gate <- nil
	all.Wait()
	c.Wait()
}

// Calls of a line that waits are refused at once beyond the bound; those that wait already are
// served, and so is the first call of another line.
func TestTooManyItemsThatWaitAreRefused(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]Options{
		"items": {Items: 100, Bytes: 100, Statements: 1, WaitingItems: 3},
		"bytes": {Items: 100, Bytes: 100, Statements: 1, WaitingBytes: 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, ran, gate := echoing(opts)
			var all sync.WaitGroup
			call := func(line string, items ...string) {
				all.Go(func() {
					if _, errs := c.Do(t.Context(), line, items, one); errors.Join(errs...) != nil {
						t.Errorf("%v got %v", items, errs)
					}
				})
			}
			refused := func(line string, items ...string) {
				t.Helper()
				_, errs := c.Do(t.Context(), line, items, one)
				for _, err := range errs {
					if !errors.Is(err, pg.ErrOverloaded) {
						t.Errorf("line %s got %v", line, err)
					}
				}
			}
			call("a", "sent")
			<-ran
			call("a", "1", "2", "3", "4") // more than the bound by itself, but nothing of its line waits
			c.inLine(t, 4)
			refused("a", "5", "6")
			call("b", "5", "6")
			c.inLine(t, 6)
			refused("b", "7")
			gate <- nil
			if got := <-ran; len(got) != 6 {
				t.Errorf("ran %v", got)
			}
			call("a", "7", "8", "9")
			c.inLine(t, 3)
			gate <- nil
			<-ran
			gate <- nil
			all.Wait()
		})
	}
}

// A statement that panics fails, and the next one is sent.
func TestAPanicIsTheErrorOfItsStatement(t *testing.T) {
	t.Parallel()
	c := New(Options{Items: 100, Bytes: 100, Statements: 1, Timeout: time.Hour},
		func(_ context.Context, in []string) ([]string, error) {
			if in[0] == "bad" {
				panic("oh no")
			}
			return in, nil
		})
	var panicked *guard.Panic
	if _, errs := c.Do(t.Context(), "a", []string{"bad"}, one); !errors.As(errs[0], &panicked) || panicked.Value != "oh no" {
		t.Errorf("got %v", errs)
	}
	if out, errs := c.Do(t.Context(), "a", []string{"good"}, one); errs[0] != nil || out[0] != "good" {
		t.Errorf("got %v %v", out, errs)
	}
}
