package admin

import (
	"context"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/jsonbody"
	"github.com/ojs-pg/ojs-pg/internal/problems"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// Filter selects dead letters.
type Filter struct {
	Queue     *string    `json:"queue" check:"scope,name"`
	Type      *string    `json:"type" check:"scope,name"`
	ErrorType *string    `json:"error_type" check:"scope,name"`
	Tenant    *string    `json:"tenant" check:"scope,name"`
	TenantID  *string    `json:"tenant_id" check:"scope,name"` // the same as tenant
	Since     *time.Time `json:"since" check:"scope"`
	Until     *time.Time `json:"until" check:"scope"`
	Older     *string    `json:"older_than" check:"scope"` // another spelling of until, which may also be an age

	age *time.Duration // instead of Until: how long ago, by the database's clock
}

// Check reads the age, and accepts both names of the tenant.
func (f *Filter) Check(o *jsonbody.Object) {
	tenant, err := jsonbody.SameTenant(o.At("tenant"), f.Tenant, f.TenantID)
	if f.Tenant = tenant; err != nil {
		o.Fail(err)
	}
	if err := f.ReadAge(o.At("older_than"), o.At("until")); err != nil {
		o.Fail(err)
	}
}

// ReadAge reads Older: a time, or an age such as P30D, which means until 30 days ago. name and
// until are the client's names of Older and Until. It fails if the two disagree. It refuses +P30D,
// because a filter never counts forward from now.
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

// Bound turns an age into a time, by the clock that dead letters are dated with. With required, a
// filter that has neither an age nor a time gets the present.
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

// counting returns the filter as parameters of the statements that count.
func (f *Filter) counting(tenant *string) sqlcgen.DeadLetterCountParams {
	return sqlcgen.DeadLetterCountParams{
		Queue: f.Queue, Type: f.Type, ErrorType: f.ErrorType, Since: f.Since, Until: f.Until, Tenant: tenant,
	}
}

// changing returns the filter as parameters of the statements that change at most limit jobs.
func (f *Filter) changing(limit int32, tenant *string) sqlcgen.RetryDeadLettersParams {
	return sqlcgen.RetryDeadLettersParams{
		Queue: f.Queue, Type: f.Type, ErrorType: f.ErrorType, Since: f.Since, Until: f.Until, MaxJobs: limit, Tenant: tenant,
	}
}

// Count returns how many dead letters match the filter.
func (f *Filter) Count(ctx context.Context, q *sqlcgen.Queries, tenant *string) (int64, error) {
	return q.DeadLetterCount(ctx, f.counting(tenant))
}

// Retry puts at most limit dead letters that match back into their queues, and returns how many.
func (f *Filter) Retry(ctx context.Context, q *sqlcgen.Queries, limit int32, tenant *string) (int32, error) {
	return q.RetryDeadLetters(ctx, f.changing(limit, tenant))
}

// CountFailed returns how many discarded jobs match the filter, dead letters or not.
func (f *Filter) CountFailed(ctx context.Context, q *sqlcgen.Queries, tenant *string) (int64, error) {
	return q.FailedCount(ctx, sqlcgen.FailedCountParams(f.counting(tenant)))
}

// RetryFailed retries at most limit of these jobs, and returns how many.
func (f *Filter) RetryFailed(ctx context.Context, q *sqlcgen.Queries, limit int32, tenant *string) (int32, error) {
	return q.RetryMany(ctx, sqlcgen.RetryManyParams(f.changing(limit, tenant)))
}

// Purge deletes at most limit dead letters that match, and returns how many.
func (f *Filter) Purge(ctx context.Context, q *sqlcgen.Queries, limit int32, tenant *string) (int32, error) {
	return q.PurgeDeadLetters(ctx, sqlcgen.PurgeDeadLettersParams(f.changing(limit, tenant)))
}
