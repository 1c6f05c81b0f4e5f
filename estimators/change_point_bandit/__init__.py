"""Change points under bandit feedback: where to query next, when to stop, and what is certain."""
