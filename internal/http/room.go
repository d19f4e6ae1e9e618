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
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// A room bounds the bytes of large bodies, or of large answers, that are in memory at once, however many clients there are. What has at
// most small bytes is not counted.
type room struct {
	free *semaphore.Weighted
	all  int64
}

const small = 64 << 10

func newRoom(bytes int64) room { return room{free: semaphore.NewWeighted(bytes), all: bytes} }

// take waits for room until ctx ends. What is larger than the whole room takes all of it.
func (r room) take(ctx context.Context, bytes int64) (give func(), ok bool) {
	bytes = min(bytes, r.all)
	if r.free.Acquire(ctx, bytes) != nil {
		return nil, false
	}
	return func() { r.free.Release(bytes) }, true
}

// try is take without the waiting.
func (r room) try(bytes int64) (give func(), ok bool) {
	bytes = min(bytes, r.all)
	if !r.free.TryAcquire(bytes) {
		return nil, false
	}
	return func() { r.free.Release(bytes) }, true
}

func noRoom(what string) *pg.Error {
	return &pg.Error{Code: kit.CodeAway, Message: "the server has no room for " + what + " at the moment", Hint: "Try again."}
}

// bodies lets a request with a large body in when there is room for it, and keeps the room until the request is done.
func (s *Server) bodies(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		r := c.Request()
		switch {
		case r.ContentLength < 0:
			grown := &unannounced{ReadCloser: r.Body, room: s.bodyRoom}
			defer grown.give()
			r.Body = grown
			return next(c)
		case r.ContentLength <= small:
			return next(c)
		}
		ctx, cancel := context.WithTimeout(r.Context(), s.limits.RoomWait)
		defer cancel()
		give, ok := s.bodyRoom.take(ctx, min(r.ContentLength, s.limits.BatchBody))
		if !ok {
			// Most clients look for an answer only when they have sent all, so the body is read, and thrown away, unless the client
			// waits for leave to send it.
			if r.Header.Get("Expect") == "" {
				_, _ = io.Copy(io.Discard, http.MaxBytesReader(c.Response(), r.Body, s.limits.BatchBody))
			}
			return noRoom("a body of this size")
		}
		defer give()
		// The time for which the body waited for room is not the client's.
		_ = http.NewResponseController(c.Response().Writer).SetReadDeadline(time.Now().Add(s.limits.Read))
		return next(c)
	}
}

// unannounced is a body whose length nobody knows before its end. It takes room bit by bit and cannot wait for it: two that wait for each
// other's would wait for ever.
type unannounced struct {
	io.ReadCloser
	room  room
	read  int64
	taken []func()
}

func (u *unannounced) Read(p []byte) (int, error) {
	const bit = 1 << 20
	if u.read > small && u.read > int64(len(u.taken))*bit {
		give, ok := u.room.try(bit)
		if !ok {
			return 0, noRoom("a body of this size")
		}
		u.taken = append(u.taken, give)
	}
	n, err := u.ReadCloser.Read(p[:min(len(p), small)])
	u.read += int64(n)
	return n, err
}

func (u *unannounced) give() {
	for _, give := range u.taken {
		give()
	}
}

// carry takes room for the jobs of a FETCH until the client has them. Jobs for which there is no room are to be given back.
func (s *Server) carry(jobs []sqlcgen.OjsJob) (give func(), err error) {
	size := int64(sizeOf(jobs))
	if size <= small {
		return func() {}, nil
	}
	give, ok := s.answerRoom.try(size)
	if !ok {
		return nil, noRoom("an answer of this size")
	}
	return give, nil
}
