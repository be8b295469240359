"""Commands as sessions have them: tasks with durable rows, watched to their end, and the news of it."""
