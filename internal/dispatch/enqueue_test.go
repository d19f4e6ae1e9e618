package dispatch

import (
	"encoding/json"
	"testing"
)

// newJob reads {type, args, queue, meta, id} as ojs.enqueue_many would.
func newJob(flat string, tenant *string) *NewJob {
	var given struct {
		Type, Queue, ID *string
		Args, Meta      json.RawMessage
	}
	if err := json.Unmarshal([]byte(flat), &given); err != nil {
		panic(err)
	}
	j := &NewJob{Args: given.Args, Meta: given.Meta, ID: given.ID, Tenant: tenant}
	if given.Type != nil {
		j.Type = []byte(*given.Type)
	}
	if given.Queue != nil {
		j.Queue = []byte(*given.Queue)
	}
	return j
}

// A job that EnqueueOnce sends as JSON is stored like one that is sent in columns, for every field.
func TestOnceIsTheSame(t *testing.T) {
	t.Parallel()
	b := dispatcher(t, Options{})
	number := func(n int32) *int32 { return &n }
	id, tenant, yes := "019539a4-0000-7000-8000-000000000001", "acme", true
	job := &NewJob{
		Type: []byte("a.b"), Queue: []byte("q"), Args: []byte(`[ 1.0 ,"\u00e9"]`), Meta: []byte(`{"k":"v"}`),
		Retry: []byte(`{"max_attempts":7}`), Options: []byte(`{"x": 1.50}`), Extra: []byte(`{"x_y" :2}`), Tags: []byte(`["t","\"u\""]`),
		ScheduledAt: []byte("2099-01-02T03:04:05Z"), ExpiresAt: []byte("2100-01-02T03:04:05Z"), Priority: number(5), MaxAttempts: number(9),
		TimeoutMs: number(1000), VisibilityTimeoutMs: number(2000), Pending: &yes, Tenant: &tenant,
	}
	many, err := b.EnqueueMany(t.Context(), []*NewJob{job}, nil)
	if err != nil {
		t.Fatal(err)
	}
	job.ID = &id
	once, _, err := b.EnqueueOnce(t.Context(), Key{Name: "k", Fingerprint: []byte("f")}, []*NewJob{job}, nil)
	if err != nil {
		t.Fatal(err)
	}
	one, other := many[0], once[0]
	if other.ID != id {
		t.Errorf("the id is %s", other.ID)
	}
	one.ID, one.CreatedAt, one.EnqueuedAt = other.ID, other.CreatedAt, other.EnqueuedAt
	wanted, _ := json.Marshal(other)
	if got, _ := json.Marshal(one); string(got) != string(wanted) {
		t.Errorf("by columns\n%s\nonce\n%s", got, wanted)
	}
}
