-- For the operators' search, which asks for members of payloads.

CREATE FUNCTION payload_document(payload text) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE STRICT AS $body$
BEGIN
    RETURN payload::jsonb;
EXCEPTION
    WHEN data_exception OR program_limit_exceeded THEN RETURN NULL;
END
$body$;

COMMENT ON FUNCTION payload_document(text) IS 'The payload of a record as jsonb; NULL if it is not JSON that jsonb can hold, which only another program writes: a search must not fail because of one row.';
