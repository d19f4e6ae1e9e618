-- +goose Up
-- Rates of requests over HTTP, and tenants that may store nothing.
set local role ojs_owner;

alter table ojs.quota
    drop constraint resource_known,
    drop constraint maximum_in_range,
    drop constraint burst_in_range,
    drop constraint period_in_range,
    add constraint resource_known check (resource in ('max_enqueue_rate', 'max_queue_depth', 'max_scheduled', 'max_depth',
        'throttled_rate', 'max_stored_bytes', 'max_in_flight_requests', 'max_waiting_polls', 'max_request_rate')),
    add constraint maximum_in_range check (
        maximum between (resource not in ('max_queue_depth', 'max_scheduled', 'max_stored_bytes'))::int and ojs._most(resource)
        or ojs._raise('OJ422', format('%s must be an integer between %s and %s', resource,
            (resource not in ('max_queue_depth', 'max_scheduled', 'max_stored_bytes'))::int, ojs._most(resource)),
            jsonb_build_object('field', resource))),
    add constraint burst_in_range check (burst is null or burst between 1 and 1000000000
        or ojs._raise('OJ422', format('%s.burst must be an integer between 1 and 1000000000', resource),
            jsonb_build_object('field', resource || '.burst'))),
    add constraint period_in_range check (period is null or period between '1 second' and '31 days'
        or ojs._raise('OJ422', format('%s.period must be between PT1S and P31D', resource),
            jsonb_build_object('field', resource || '.period')));

reset role;
