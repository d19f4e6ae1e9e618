-- name: ReleaseMany :many
select ojs.release_many(@ids::uuid[], @leases::uuid[])::uuid as id;
