"""Who runs which session, and how that ownership is kept, lost and handed over."""
