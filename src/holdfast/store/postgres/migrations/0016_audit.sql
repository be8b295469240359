-- The audit log. Each entry is written in the transaction of the act that it tells of.
CREATE TABLE holdfast.audit (
  number bigint GENERATED ALWAYS AS IDENTITY (SEQUENCE NAME holdfast.audit_number CACHE 1) PRIMARY KEY,
  at bigint NOT NULL,
  actor text NOT NULL,
  actor_id text NOT NULL,
  actor_owner text NOT NULL,
  role text NOT NULL,
  address text NOT NULL,
  action text NOT NULL,
  owner text NOT NULL,
  target text NOT NULL,
  result text NOT NULL,
  detail text NOT NULL
);

CREATE FUNCTION holdfast.refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'the audit log is append-only';
END
$$;
CREATE TRIGGER audit_is_append_only BEFORE UPDATE ON holdfast.audit
  FOR EACH ROW EXECUTE FUNCTION holdfast.refuse_change();
