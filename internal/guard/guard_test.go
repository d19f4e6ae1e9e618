package guard

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
)

func TestAPartThatPanicsIsLoggedAndStartsAgain(t *testing.T) {
	t.Parallel()
	var logged bytes.Buffer
	starts := 0
	Loop(t.Context(), slog.New(slog.NewTextHandler(&logged, nil)), "clock", func(context.Context) {
		if starts++; starts == 1 {
			panic("out of springs")
		}
	})
	if starts != 2 || !strings.Contains(logged.String(), "out of springs") || !strings.Contains(logged.String(), "part=clock") {
		t.Errorf("%d starts; logged: %s", starts, logged.String())
	}
}

func TestAPartThatPanicsAtTheEndDoesNotStartAgain(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	starts := 0
	Loop(ctx, slog.New(slog.DiscardHandler), "clock", func(context.Context) {
		starts++
		cancel()
		panic("now")
	})
	if starts != 1 {
		t.Errorf("%d starts", starts)
	}
}

func TestCallReturnsThePanicWithItsPlace(t *testing.T) {
	t.Parallel()
	err := Call(func() error { panic("here") })
	var p *Panic
	if !errors.As(err, &p) || p.Value != "here" || !strings.Contains(err.Error(), "guard_test.go") {
		t.Errorf("%v", err)
	}
	if err := Call(func() error { return nil }); err != nil {
		t.Error(err)
	}
}
