"""Several real processes at one database: what they are started as, and what is known of each."""
