"""Open SQLite files, migrate their format and classify their errors."""
