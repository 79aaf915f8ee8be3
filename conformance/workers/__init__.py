"""Worker processes: what runs there, and the pool that hands out tasks and survives their crashes."""
