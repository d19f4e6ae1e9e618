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

// What has at most small bytes is not counted by any room.
const small = 64 << 10

func noRoom(what string) *pg.Error {
	return &pg.Error{Code: problems.CodeAway, Message: "the server has no room for " + what + " at the moment", Hint: "Try again."}
}

// The bytes of large request bodies that are in memory at once are bounded, however many clients there are.
//
// A body takes room step by step as it arrives, so that a client holds no more than it has sent. Bodies that each wait for the others'
// room would wait for ever. So half of the room is places for whole bodies: one that finds no step free waits for a place, and needs
// nothing more once it has one.
const step = 1 << 20

// bodies returns the memory of a body to the budget when its request ends.
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

// roomyBody is a request body that takes memory from the budget while it is read.
type roomyBody struct {
	io.ReadCloser
	s      *Server
	c      echo.Context
	caller string
	limit  int64 // bytes that the route takes; zero: the body is discarded, and needs no room
	read   int64
	steps  int64
	place  bool
}

func (b *roomyBody) Read(p []byte) (int, error) {
	if b.limit > 0 && b.read > small && b.read >= b.steps*step && !b.place {
		if !b.take() {
			// Most clients look for an answer only when they have sent all, so the rest is read, and thrown away.
			_, _ = io.Copy(io.Discard, io.LimitReader(b.ReadCloser, b.limit-b.read+1))
			return 0, noRoom("a body of this size")
		}
	}
	n, err := b.ReadCloser.Read(p[:min(len(p), small)])
	b.read += int64(n)
	return n, err
}

// take takes one step of the budget. If no step is free it waits for a place, which holds a whole
// body.
func (b *roomyBody) take() bool {
	if b.s.admission.steps.Try(b.caller, 1) {
		b.steps++
		return true
	}
	ctx, cancel := context.WithTimeout(b.c.Request().Context(), b.s.limits.RoomWait)
	defer cancel()
	b.place = b.s.admission.places.Enter(ctx, b.caller) == nil
	// The time for which the body waited for room is not the client's.
	_ = http.NewResponseController(b.c.Response().Writer).SetReadDeadline(time.Now().Add(b.s.limits.Read))
	return b.place
}

func (b *roomyBody) give() {
	b.s.admission.steps.Leave(b.caller, b.steps)
	if b.place {
		b.s.admission.places.Leave(b.caller, 1)
	}
}

// carry takes memory for an answer from the budget until give is called. It fails if there is none;
// the caller gives back the jobs of a FETCH then. An answer that is larger than the caller's whole
// share takes all of it.
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

func half(units int64) int64 { return max(1, units/2) }

// caller returns the name under which a request counts against limits: its tenant, or else its
// credential.
func (s *Server) caller(c echo.Context) string {
	if tenant := s.namedTenant(c); tenant != "" {
		return tenant
	}
	return pg.NoTenant + actorOf(c)
}
