"""The journal: the run's own SQLite file, the truth about it. What it acknowledged is there after any crash."""

from .files import JournalFiles, files_of
from .journal import Journal
from .kinds import State
from .known import Known
from .rows import StateRow, harmless, row_text
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
