package admin

import (
	"context"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/jsonbody"
	"github.com/ojs-pg/ojs-pg/internal/problems"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// Filter picks dead letters.
type Filter struct {
	Queue     *string    `json:"queue" check:"name"`
	Type      *string    `json:"type" check:"name"`
	ErrorType *string    `json:"error_type" check:"name"`
	Tenant    *string    `json:"tenant" check:"name"`
	TenantID  *string    `json:"tenant_id" check:"name"` // the same
	Since     *time.Time `json:"since"`
	Until     *time.Time `json:"until"`
	Older     *string    `json:"older_than"` // another spelling of until, which may also be an age

	age *time.Duration // instead of Until: how long ago, by the database's clock
}

// Check reads the age, and takes both names of the tenant.
func (f *Filter) Check(o *jsonbody.Object) {
	tenant, err := jsonbody.SameTenant(o.At("tenant"), f.Tenant, f.TenantID)
	if f.Tenant = tenant; err != nil {
		o.Fail(err)
	}
	if err := f.ReadAge(o.At("older_than"), o.At("until")); err != nil {
		o.Fail(err)
	}
}

// ReadAge reads Older, which its writer calls name, beside until: a time, or an age such as P30D for until 30 days ago. Nothing here counts
// forward from now, so what does, +P30D, is refused.
func (f *Filter) ReadAge(name, until string) error {
	if f.Older == nil {
		return nil
	}
	at, err := jsonbody.ParseTime(*f.Older)
	age, noAge := jsonbody.ParseDuration(*f.Older)
	switch {
	case err == nil && f.Until != nil && !f.Until.Equal(at), noAge == nil && f.Until != nil:
		return problems.Invalid(name, "disagrees with %s", until)
	case err == nil:
		f.Until = &at
	case noAge == nil:
		f.age = &age
	default:
		return problems.Invalid(name,
			"must be a time as in RFC 3339 with an offset, or an age as an ISO 8601 duration of weeks to seconds, such as P30D")
	}
	return nil
}

// Bound turns an age into a time, by the clock that dead letters are dated with; it gives a filter without either the present, if it is
// to have a bound.
func (f *Filter) Bound(ctx context.Context, q *sqlcgen.Queries, required bool) error {
	age := f.age
	if age == nil && required {
		age = new(time.Duration)
	}
	if f.Until != nil || age == nil {
		return nil
	}
	at, err := q.Ago(ctx, age.Seconds())
	f.Until = &at
	return err
}

// counting is the filter as the statements take it that count.
func (f *Filter) counting(tenant *string) sqlcgen.DeadLetterCountParams {
	return sqlcgen.DeadLetterCountParams{
		Queue: f.Queue, Type: f.Type, ErrorType: f.ErrorType, Since: f.Since, Until: f.Until, Tenant: tenant,
	}
}

// changing is the filter as the statements take it that change at most limit jobs.
func (f *Filter) changing(limit int32, tenant *string) sqlcgen.RetryDeadLettersParams {
	return sqlcgen.RetryDeadLettersParams{
		Queue: f.Queue, Type: f.Type, ErrorType: f.ErrorType, Since: f.Since, Until: f.Until, MaxJobs: limit, Tenant: tenant,
	}
}

// Count is how many dead letters the filter lets pass.
func (f *Filter) Count(ctx context.Context, q *sqlcgen.Queries, tenant *string) (int64, error) {
	return q.DeadLetterCount(ctx, f.counting(tenant))
}

// Retry puts at most limit of them back into their queues and says how many.
func (f *Filter) Retry(ctx context.Context, q *sqlcgen.Queries, limit int32, tenant *string) (int32, error) {
	return q.RetryDeadLetters(ctx, f.changing(limit, tenant))
}

// CountFailed is how many jobs that failed for good the filter lets pass, dead letters or not.
func (f *Filter) CountFailed(ctx context.Context, q *sqlcgen.Queries, tenant *string) (int64, error) {
	return q.FailedCount(ctx, sqlcgen.FailedCountParams(f.counting(tenant)))
}

// RetryFailed has at most limit of them run again and says how many.
func (f *Filter) RetryFailed(ctx context.Context, q *sqlcgen.Queries, limit int32, tenant *string) (int32, error) {
	return q.RetryMany(ctx, sqlcgen.RetryManyParams(f.changing(limit, tenant)))
}

// Purge deletes at most limit of them and says how many.
func (f *Filter) Purge(ctx context.Context, q *sqlcgen.Queries, limit int32, tenant *string) (int32, error) {
	return q.PurgeDeadLetters(ctx, sqlcgen.PurgeDeadLettersParams(f.changing(limit, tenant)))
}
