-- What has vanished from the code: a line for each object, the latest last, such as
--   drop function if exists ojs._old(int);
-- Nothing here cascades. Where something of a user's depends on an object, migrate up stops, changes nothing, and names both. When this
-- file changes, all code is applied anew, so an object that is listed here may come back in another form.
drop function if exists ojs._begin_after_restore();
