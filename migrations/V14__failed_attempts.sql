-- The failed attempts of each route (ADR 0060).

ALTER TABLE routes ADD COLUMN failed_attempts jsonb NULL;

COMMENT ON COLUMN routes.failed_attempts IS 'The newest failed attempts, the oldest first, at most max_attempts: attempt, at, classification and message of each. NULL if none was kept.';
