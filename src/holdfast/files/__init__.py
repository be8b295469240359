"""Files of owners: their rows are in the store, and their bytes are objects in the file store, a folder or a bucket."""
