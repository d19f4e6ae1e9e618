-- +goose Up
-- A worker that sends an ACK twice gets a conflict, and the hint did not name its own earlier request.
set local role ojs_owner;

update ojs.problem
set hint = 'Read the job: another worker, a cancellation, an expired lease or an earlier request of your own came first.'
where sqlstate = 'OJ409';

reset role;
