-- What operators sent again: who, why, and in place of which entry (ADR 0059).

ALTER TABLE routes ADD COLUMN resent_at timestamptz NULL;
ALTER TABLE routes ADD COLUMN resent_by text NOT NULL DEFAULT '';
ALTER TABLE routes ADD COLUMN resend_reason text NOT NULL DEFAULT '';
ALTER TABLE routes ADD COLUMN replaced_entry_id text NOT NULL DEFAULT '';

COMMENT ON COLUMN routes.resent_at IS 'When an operator last had the published route sent again.';
COMMENT ON COLUMN routes.resent_by IS 'Who did: the name of an operator''s token, or user@host.';
COMMENT ON COLUMN routes.resend_reason IS 'Why, in the operator''s words; may be empty.';
COMMENT ON COLUMN routes.replaced_entry_id IS 'The id of the entry that the last resend replaces: this one and earlier ones are entries of earlier attempts.';
COMMENT ON COLUMN routes.attempt_count IS 'Failed attempts so far. After a resend, also those before it and the one that was published.';
COMMENT ON COLUMN routes.max_attempts IS 'An attempt that fails at this count makes a dead letter.';
COMMENT ON COLUMN routes.published_at IS 'When the append was recorded here; kept while the route is sent again.';
COMMENT ON COLUMN routes.published_entry_id IS 'The id of its entry in the outbound stream; of a live route, the entry that the next one replaces.';
COMMENT ON COLUMN routes.skipped_at IS 'When the route was skipped, because it has no recipient or an operator cancelled it.';
