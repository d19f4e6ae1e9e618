-- What a database of a release holds in its dump: of each kind of row that an upgrade has to keep, a few. Until the first tick, all is in
-- the state that it has here, however long ago that was.

select ojs.configure_tier('gold', '{"weight": 4}');
select ojs.configure_tenant('acme', 3);
select ojs.configure_limits('acme', '{"max_concurrency": {"limit": 20}, "max_enqueue_rate": {"limit": 100000, "period": "PT1M"},
    "max_queue_depth": {"limit": 100000}, "max_stored_bytes": {"limit": 1000000000}}');
select ojs.limit_concurrency(50, p_queue => 'mail');
select ojs.configure_pool('fast', '{"queues": ["fast"], "max_concurrency": 5}');
select ojs.put_cron('nightly', '0 3 * * *', 'report', p_queue => 'mail', p_tenant => 'acme');
select ojs.create_api_key('acme', '{produce,work,read}', 'of the release');
select ojs.register_worker('w1', p_queues => '{mail}', p_tenant => 'acme');
select ojs.pause('paused', p_reason => 'by the release');

-- Completed, with a result; failed for good; waiting for their retry; held by a worker.
select ojs.enqueue('done', '[1]', 'mail', p_tenant => t) from unnest('{acme,globex}'::text[]) t, generate_series(1, 5);
select ojs.ack(f.id, f.lease, '{"ok": true}') from ojs.fetch('{mail}', 10) f;
select ojs.enqueue('fails', '[1]', 'mail', p_max_attempts => 1, p_tenant => 'globex') from generate_series(1, 3);
select ojs.nack(f.id, '{"type": "boom", "message": "no"}', f.lease) from ojs.fetch('{mail}', 3) f;
select ojs.enqueue('again', '[1]', 'mail', p_tenant => 'globex', p_retry =>
    '{"max_attempts": 5, "initial_interval": "P300D", "max_interval": "P300D", "jitter": false}') from generate_series(1, 4);
select ojs.nack(f.id, '{"type": "boom", "message": "later"}', f.lease) from ojs.fetch('{mail}', 4) f;
select ojs.enqueue('held', '[1]', 'mail', p_tenant => 'acme') from generate_series(1, 2);
select ojs.fetch('{mail}', 2, 'w1', 604800000);
select ojs.tick();

-- Waiting, of several tenants and priorities, in a transaction of their own and in the same; scheduled; pending; cancelled; paused.
select ojs.enqueue('waits', '[1, {"n": 2}]', 'mail', p_priority => n % 3, p_meta => '{"trace": "x"}', p_tags => '{a,b}',
    p_tenant => (array['acme', 'globex', 'initech'])[1 + n % 3]) from generate_series(1, 60) n;
select ojs.enqueue('late', '[1]', 'mail', p_scheduled_at => '2100-01-01Z', p_tenant => 'initech') from generate_series(1, 7);
select ojs.enqueue('pending', '[1]', 'mail', p_pending => true, p_tenant => 'initech') from generate_series(1, 2);
select ojs.enqueue('expires', '[1]', 'mail', p_expires_at => '2100-01-01Z', p_tenant => 'initech');
select ojs.cancel(j.id) from (select ojs.enqueue('goes', '[1]', 'mail', p_tenant => 'initech') as j) e cross join lateral (select (e.j).id) j;
select ojs.enqueue('stays', '[1]', 'paused', p_tenant => 'initech') from generate_series(1, 3);
select count(*) from ojs.enqueue_once('key', '[{"type": "once", "args": [1], "queue": "mail"}]', 'acme');
