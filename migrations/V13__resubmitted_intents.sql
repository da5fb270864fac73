-- Malformed intents that an operator appended to the intents stream again (ADR 0065).

ALTER TABLE malformed_intents ADD COLUMN resubmitted_at timestamptz NULL;
ALTER TABLE malformed_intents ADD COLUMN resubmitted_entry_id text COLLATE "C" NULL;

COMMENT ON COLUMN malformed_intents.resubmitted_at IS 'When an operator resubmitted the intent, by the clock of this database.';
COMMENT ON COLUMN malformed_intents.resubmitted_entry_id IS 'The id of the new entry, which has the same fields; its outcome is that of the intent.';
