"""The journal: the run's own SQLite file, the truth about it. What it acknowledged is there after any crash."""

from .entry_kinds import State
from .entry_text import StateRow, harmless, row_text
from .journal import Journal
from .journal_files import JournalFiles, files_of
from .known_items import Known
from .writer import Start, Writer

__all__ = [
    "Journal",
    "JournalFiles",
    "Known",
    "Start",
    "State",
    "StateRow",
    "Writer",
    "files_of",
    "harmless",
    "row_text",
]
