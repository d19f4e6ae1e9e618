package httpapi

import (
	"context"
	"io"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/problems"
)

// small is the size, in bytes, up to which a body or an answer is not counted.
const small = 64 << 10

// noRoom returns the error for a body or an answer for which no memory is free. The client may try
// again.
func noRoom(what string) *pg.Error {
	return &pg.Error{Code: problems.CodeAway, Message: "the server has no room for " + what + " at the moment", Hint: "Try again."}
}

// step is the unit, in bytes, in which a large request body takes memory as it arrives.
//
// Limits.Bodies bounds the memory of all large bodies together, however many clients there are. A
// body takes one step after the other as it arrives, so that a client holds no more than it has
// sent. If all memory were given out in steps, bodies could each hold some and wait for each other
// for ever. So half of the memory is kept as places for whole bodies: a body that finds no free
// step waits for a place, and once it has one, it needs nothing more.
const step = 1 << 20

// bodies is a middleware that counts the memory that a large request body takes, and frees it when
// the request is done.
func (s *Server) bodies(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		r := c.Request()
		if 0 <= r.ContentLength && r.ContentLength <= small {
			return next(c)
		}
		b := &roomyBody{ReadCloser: r.Body, s: s, c: c, caller: s.caller(c)}
		defer b.give()
		r.Body = b
		return next(c)
	}
}

// roomyBody is a request body that takes memory from the server's admission as it is read. Only the
// goroutine of the handler uses it, so it needs no lock.
type roomyBody struct {
	io.ReadCloser
	s      *Server
	c      echo.Context
	caller string
	limit  int64 // most bytes that the route accepts; 0: the body is discarded, and takes no memory
	read   int64 // bytes read so far
	steps  int64 // steps that the body holds
	place  bool  // whether the body holds a place
}

// Read implements io.Reader. Beyond the steps that the body holds it first takes another step or a
// place. If it gets neither, it discards the rest of the body and fails with noRoom.
func (b *roomyBody) Read(p []byte) (int, error) {
	if b.limit > 0 && b.read > small && b.read >= b.steps*step && !b.place {
		if !b.take() {
			// Most clients read the answer only after they have sent the whole body, so the rest is
			// read and discarded.
			_, _ = io.Copy(io.Discard, io.LimitReader(b.ReadCloser, b.limit-b.read+1))
			return 0, noRoom("a body of this size")
		}
	}
	n, err := b.ReadCloser.Read(p[:min(len(p), small)])
	b.read += int64(n)
	return n, err
}

// take takes a step if one is free, and otherwise waits for a place, for at most Limits.RoomWait.
// It reports whether it got one of them.
func (b *roomyBody) take() bool {
	if b.s.admission.steps.Try(b.caller, 1) {
		b.steps++
		return true
	}
	ctx, cancel := context.WithTimeout(b.c.Request().Context(), b.s.limits.RoomWait)
	defer cancel()
	b.place = b.s.admission.places.Enter(ctx, b.caller) == nil
	// The read deadline begins again: the client did not cause the wait for memory.
	_ = http.NewResponseController(b.c.Response().Writer).SetReadDeadline(time.Now().Add(b.s.limits.Read))
	return b.place
}

// give frees the memory that the body holds.
func (b *roomyBody) give() {
	b.s.admission.steps.Leave(b.caller, b.steps)
	if b.place {
		b.s.admission.places.Leave(b.caller, 1)
	}
}

// carry takes memory for the bytes of an answer. The caller calls give when the client has the
// answer. carry fails with noRoom if not enough is free; a FETCH then gives its jobs back. An
// answer larger than all that its caller may hold takes all of that instead: otherwise it could
// never be sent.
func (s *Server) carry(c echo.Context, size int) (give func(), err error) {
	if size <= small {
		return func() {}, nil
	}
	who, room := s.caller(c), s.admission.answers
	bytes := min(int64(size), s.limits.Answers)
	if pg.IsTenant(who) {
		bytes = min(bytes, half(s.limits.Answers))
	}
	if !room.Try(who, bytes) {
		return nil, noRoom("an answer of this size")
	}
	return func() { room.Leave(who, bytes) }, nil
}

// half returns half of units, at least 1.
func half(units int64) int64 { return max(1, units/2) }

// caller returns the name under which a request is counted: its tenant, or else pg.NoTenant and the
// name of its credential.
func (s *Server) caller(c echo.Context) string {
	if tenant := s.namedTenant(c); tenant != "" {
		return tenant
	}
	return pg.NoTenant + actorOf(c)
}
