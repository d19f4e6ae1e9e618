package httpapi

import (
	"context"
	"io"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"
	"golang.org/x/sync/semaphore"

	"github.com/ojs-pg/ojs-pg/internal/http/kit"
	"github.com/ojs-pg/ojs-pg/internal/pg"
)

// What has at most small bytes is not counted by any room.
const small = 64 << 10

func noRoom(what string) *pg.Error {
	return &pg.Error{Code: kit.CodeAway, Message: "the server has no room for " + what + " at the moment", Hint: "Try again."}
}

// bodyRoom bounds the bytes of large request bodies that are in memory at once, however many clients there are.
//
// A body takes room step by step as it arrives, so that a client holds no more than it has sent. Bodies that each wait for the others'
// room would wait for ever. So half of the room is places for whole bodies: one that finds no step free waits for a place, and needs
// nothing more once it has one.
type bodyRoom struct {
	steps, places *semaphore.Weighted
}

const step = 1 << 20

// newBodyRoom divides bytes; largest is what a whole body has at most.
func newBodyRoom(bytes, largest int64) bodyRoom {
	places := max(1, bytes/2/largest)
	return bodyRoom{
		steps:  semaphore.NewWeighted(max(0, bytes-places*largest) / step),
		places: semaphore.NewWeighted(places),
	}
}

// bodies makes the room that a body takes free again when its request is done.
func (s *Server) bodies(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		r := c.Request()
		if 0 <= r.ContentLength && r.ContentLength <= small {
			return next(c)
		}
		b := &roomyBody{ReadCloser: r.Body, s: s, c: c}
		defer b.give()
		r.Body = b
		return next(c)
	}
}

// roomyBody is a request body that takes room as it is read.
type roomyBody struct {
	io.ReadCloser
	s     *Server
	c     echo.Context
	limit int64 // bytes that the route takes; zero: the body is discarded, and needs no room
	read  int64
	steps int64
	place bool
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

// take takes a step if one is free, and otherwise waits for a place.
func (b *roomyBody) take() bool {
	if b.s.bodyRoom.steps.TryAcquire(1) {
		b.steps++
		return true
	}
	ctx, cancel := context.WithTimeout(b.c.Request().Context(), b.s.limits.RoomWait)
	defer cancel()
	b.place = b.s.bodyRoom.places.Acquire(ctx, 1) == nil
	// The time for which the body waited for room is not the client's.
	_ = http.NewResponseController(b.c.Response().Writer).SetReadDeadline(time.Now().Add(b.s.limits.Read))
	return b.place
}

func (b *roomyBody) give() {
	b.s.bodyRoom.steps.Release(b.steps)
	if b.place {
		b.s.bodyRoom.places.Release(1)
	}
}

// carry takes room for the bytes of an answer until the client has them. The jobs of a FETCH for which there is no room are to be given
// back. What is larger than the whole room takes all of it.
func (s *Server) carry(size int) (give func(), err error) {
	if size <= small {
		return func() {}, nil
	}
	bytes := min(int64(size), s.limits.Answers)
	if !s.answerRoom.TryAcquire(bytes) {
		return nil, noRoom("an answer of this size")
	}
	return func() { s.answerRoom.Release(bytes) }, nil
}
