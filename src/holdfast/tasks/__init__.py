"""Commands as tasks of sessions: durable rows, watched until the command ends, and the news of its end."""
