-- The name that identifies this database, wherever its file is. A copy of the file has the same name.
CREATE TABLE identity (
  name TEXT NOT NULL
);
INSERT INTO identity (name) VALUES (lower(hex(randomblob(16))));
