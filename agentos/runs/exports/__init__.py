"""Files made from results: results.jsonl, the joblog, the event log."""
