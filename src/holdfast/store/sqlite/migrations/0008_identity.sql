-- What this database is known by among others, wherever its file lies. A copy of it has the same.
CREATE TABLE identity (
  name TEXT NOT NULL
);
INSERT INTO identity (name) VALUES (lower(hex(randomblob(16))));
