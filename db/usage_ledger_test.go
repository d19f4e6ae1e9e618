package db_test

import (
	"testing"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

func TestUsageFirst(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service, now := d.Service(), noon
	d.SetNow(now)
	exec(t, service, "select ojs.enqueue('a', p_queue => 'q', p_tenant => 'acme')")
	job := one[string](t, service, "select id from ojs.fetch('{q}', 1)")
	d.SetNow(now.Add(90 * time.Second))
	exec(t, service, "select ojs.ack($1)", job)
	exec(t, service, "select ojs.tick()")
	d.SetNow(now.Add(time.Hour))
	exec(t, service, "select ojs.tick()")
	for _, l := range lines(t, service, "select b::text from ojs.usage_batches b") {
		t.Log(l)
	}
	for _, l := range lines(t, service, "select b::text from ojs.verify_usage() b") {
		t.Log(l)
	}
	t.Log(one[string](t, d.Pool, "select ojs._usage_text(b) from ojs.usage_batch b"))
}
