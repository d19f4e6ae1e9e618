package fair_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/ojs-pg/ojs-pg/internal/fair"
	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// queue makes a caller wait for a unit, in a goroutine of its own that sends the caller's name to
// served when it has the unit. It returns when the caller is seen waiting, so that callers queue in
// the order of the calls.
func queue(t *testing.T, g *fair.Gate, name string, served chan<- string) {
	t.Helper()
	before := g.Waiting()
	go func() {
		if err := g.Enter(context.Background(), name); err != nil {
			t.Error(err)
		}
		served <- name
	}()
	pgtest.Eventually(t, name+" is in line", func() bool { return g.Waiting() == before+1 })
}

// If several callers wait, the one that holds the fewest units is served next, and among equals the
// one that came first.
func TestAUnitGoesToWhoHoldsFewest(t *testing.T) {
	t.Parallel()
	g := fair.NewGate(3, nil)
	for range 3 {
		if !g.Try("flood", 1) {
			t.Fatal("no unit is free")
		}
	}
	served := make(chan string)
	for range 4 {
		queue(t, g, "flood", served)
	}
	for _, name := range []string{"a", "b", "b"} {
		queue(t, g, name, served)
	}
	// The flood gives up one unit after the other, and gets none while others hold fewer.
	var order []string
	for range 3 {
		g.Leave("flood", 1)
		order = append(order, <-served)
	}
	if !slices.Equal(order, []string{"a", "b", "flood"}) {
		t.Errorf("served in the order %v", order)
	}
	// a, b and flood hold one each; b leaves, and both b and the flood wait.
	g.Leave("b", 1)
	if next := <-served; next != "b" {
		t.Errorf("%s was next, who holds more", next)
	}
	for range 3 {
		g.Leave("flood", 1)
		if next := <-served; next != "flood" {
			t.Errorf("%s was next, who does not wait", next)
		}
	}
	for _, name := range []string{"a", "b", "flood"} {
		g.Leave(name, 1)
		if held := g.Held(name); held != 0 {
			t.Errorf("%s holds %d", name, held)
		}
	}
	if callers, free, turns := g.Rest(); callers != 0 || free != 3 || turns != 0 {
		t.Errorf("%d callers are remembered, %d units are free, %d in line", callers, free, turns)
	}
}

// A caller at its own bound keeps no other caller waiting, and gets no unit that comes free.
func TestBoundsOfACaller(t *testing.T) {
	t.Parallel()
	g := fair.NewGate(4, func(name string) fair.Bounds {
		if name == "flood" {
			return fair.Bounds{Most: 2, Line: 1}
		}
		return fair.Bounds{}
	})
	if !g.Try("flood", 2) || g.Try("flood", 1) {
		t.Error("the flood does not have two units and no more")
	}
	served := make(chan string)
	queue(t, g, "flood", served)
	if err := g.Enter(t.Context(), "flood"); !errors.Is(err, fair.ErrLine) {
		t.Errorf("a second one in line: %v", err)
	}
	if !g.Try("a", 1) {
		t.Error("a free unit is kept from somebody else")
	}
	g.Leave("a", 1)
	select {
	case <-served:
		t.Error("the flood exceeds its bound")
	default:
	}
	g.Leave("flood", 1)
	<-served
	g.Leave("flood", 2)
}

func TestWhoLeavesTheLineLosesNothing(t *testing.T) {
	t.Parallel()
	g := fair.NewGate(1, nil)
	if err := g.Enter(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan error)
	go func() { left <- g.Enter(ctx, "b") }()
	pgtest.Eventually(t, "b is in line", func() bool { return g.Waiting() == 1 })
	cancel()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	g.Leave("a", 1)
	if !g.Try("c", 1) {
		t.Error("the unit went to somebody who had left")
	}
	g.Leave("c", 1)
}

// Many callers enter, leave and give up at once. At no time are more units held than exist, or more
// by one caller than its bound; in the end all are free.
func TestUnitsAreNeitherMadeNorLost(t *testing.T) {
	t.Parallel()
	const units, most = 5, 3
	g := fair.NewGate(units, func(string) fair.Bounds { return fair.Bounds{Most: most} })
	var mu sync.Mutex
	out, all := map[string]int{}, 0
	note := func(name string, n int) {
		mu.Lock()
		defer mu.Unlock()
		out[name] += n
		if all += n; all > units || out[name] > most {
			t.Errorf("%d units are out, %s holds %d", all, name, out[name])
		}
	}
	var running sync.WaitGroup
	for i := range 40 {
		name := string(rune('a' + i%4))
		running.Go(func() {
			for range 200 {
				ctx, cancel := context.WithCancel(context.Background())
				if rand.N(4) == 0 {
					go cancel()
				}
				if g.Enter(ctx, name) == nil {
					note(name, 1)
					note(name, -1)
					g.Leave(name, 1)
				}
				cancel()
			}
		})
	}
	running.Wait()
	if callers, free, turns := g.Rest(); callers != 0 || free != units || turns != 0 {
		t.Errorf("%d callers are remembered, %d units are free, %d in line", callers, free, turns)
	}
}

func BenchmarkAlone(b *testing.B) {
	g := fair.NewGate(16, nil)
	for b.Loop() {
		if g.Try("a", 1) {
			g.Leave("a", 1)
		}
	}
}
