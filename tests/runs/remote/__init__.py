"""Assignments that are sent to remote workers, and the reports that come back."""
