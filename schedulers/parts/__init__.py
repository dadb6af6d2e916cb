"""What several schedulers share: greedy merging."""
