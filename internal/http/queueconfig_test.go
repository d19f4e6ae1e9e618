package httpapi

import (
	"testing"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// Of two that create a queue at once, one does, and the other is told what it would be told a moment later.
func TestAQueueIsCreatedOnce(t *testing.T) {
	t.Parallel()
	a := start(t)
	tx, err := a.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, tx, "lock table ojs.queue in share update exclusive mode") // as who configures another queue
	answers := make(chan *reply, 2)
	for _, description := range []string{"first", "second"} {
		go func() {
			r, err := a.send(t.Context(), "POST", "/ojs/v1/queues", `{"name":"mail","config":{"description":"`+description+`"}}`)
			if err != nil {
				t.Error(err)
			}
			answers <- r
		}()
	}
	a.db.BlockedSessions(2)
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	one, other := <-answers, <-answers
	if one == nil || other == nil {
		t.FailNow()
	}
	if one.status > other.status {
		one, other = other, one
	}
	one.want(201)
	late := a.do("POST", "/ojs/v1/queues", `{"name":"mail"}`).want(409)
	for _, at := range []string{"error.code", "error.message", "error.hint", "error.details.field"} {
		if got := other.want(409).get(at); got != late.get(at) {
			t.Errorf("%s is %v, and a moment later %v", at, got, late.get(at))
		}
	}
	a.do("GET", "/ojs/v1/queues/mail/config", "").want(200).is(map[string]any{"config.description": one.get("config.description")})
}
