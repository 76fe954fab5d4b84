"""Errors a caller of agentos can act on: one class per decision, with the facts as fields."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, dataclass_transform

_Error = TypeVar("_Error", bound="AgentOSError")


class AgentOSError(Exception):
    """Base of every error agentos raises on purpose (bad arguments are plain ``ValueError``)."""

    def __init__(self, **facts: Any) -> None:
        self.__dict__.update(facts)
        super().__init__(self.describe())

    def describe(self) -> str:
        """Return what happened, to which thing, and what to do."""
        return self.__class__.__name__

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors take keywords: the default (calling the class with ``args``) would lose the facts.
        facts = {name: fact for name, fact in self.__dict__.items() if not name.startswith("_")}
        notes = {name: fact for name, fact in self.__dict__.items() if name.startswith("_")}
        return _rebuild, (self.__class__, facts), notes or None


def _rebuild(cls: type[AgentOSError], facts: dict[str, Any]) -> AgentOSError:
    return cls(**facts)


@dataclass_transform(eq_default=False, kw_only_default=True)
def error_fields(*, init: bool = True, kw_only: bool = True) -> Callable[[type[_Error]], type[_Error]]:
    """Build the ``__init__`` of an error class from its annotated fields; ``init=False`` is for an abstract base.

    The parameters are the fields of the bases, then those of the class; a field with a value has it as default.
    """

    def decorate(cls: type[_Error]) -> type[_Error]:
        fields: dict[str, str] = {}
        defaults: dict[str, Any] = {}
        for base in reversed(cls.__mro__):
            if issubclass(base, AgentOSError):
                fields |= base.__annotations__
                defaults |= {name: vars(base)[name] for name in base.__annotations__ if name in vars(base)}
        parameters = [f"{key}: {kind}" + f" = defaults[{key!r}]" * (key in defaults) for key, kind in fields.items()]
        head = ", ".join(["self", *["*"] * kw_only, *parameters])
        namespace: dict[str, Any] = {"cls": cls, "defaults": defaults}
        facts = ", ".join(f"{name}={name}" for name in fields)
        exec(f"def __init__({head}) -> None: super(cls, self).__init__({facts})", namespace)  # noqa: S102 - names of fields
        namespace["__init__"].__module__, namespace["__init__"].__qualname__ = (
            cls.__module__,
            f"{cls.__qualname__}.__init__",
        )
        cls.__init__ = namespace["__init__"]  # type: ignore[method-assign]
        return cls

    return decorate if init else lambda cls: cls


@error_fields()
class NoCredentialAvailable(AgentOSError, TimeoutError):
    """No credential became free within the timeout; waiting longer would help."""

    waited: float
    next_free_in: float | None = None

    def describe(self) -> str:
        if self.next_free_in is None:
            due = "the next is free when a holder releases one"
        else:
            due = f"the next is due in {self.next_free_in:.1f}s"
        return f"no credential became free in {self.waited:.1f}s; {due}"


@error_fields()
class NoUsableCredential(AgentOSError):
    """No credential of the pool can serve this request: waiting does not help."""

    reason: str

    def describe(self) -> str:
        return f"no usable credential: {self.reason}"


@error_fields()
class NeverFits(AgentOSError):
    """The request costs more than the limit of any credential allows at once: waiting does not help."""

    dimension: str
    cost: float
    largest: float

    def describe(self) -> str:
        return (
            f"a request of {self.cost:g} {self.dimension} never fits: the largest limit in the pool "
            f"admits {self.largest:g} at once; split the request or add a credential with a larger limit"
        )


class PoolClosed(AgentOSError):
    """The pool is closed and grants no leases."""

    def describe(self) -> str:
        return "the credential pool is closed; it grants no more leases"


@error_fields()
class WouldBlockLoop(AgentOSError, RuntimeError):
    """A blocking wait was requested in a running event loop, which it would block."""

    instead: str

    def describe(self) -> str:
        return f"waiting for a credential here would block the running event loop; use `{self.instead}`"


class ForeignHost(AgentOSError):
    """The request is for a host to which no credential of the pool may be sent. Nothing was sent.

    ``credentials`` are the names of the credentials considered.
    """

    host: str
    credentials: tuple[str, ...]
    detail: str

    def __init__(self, *, host: str, credentials: tuple[str, ...], detail: str) -> None:
        super().__init__(host=host, credentials=tuple(credentials), detail=detail)

    def describe(self) -> str:
        scheme, _, place = self.host.rpartition("://")
        if scheme == "http" and ":" not in place.rpartition("]")[2]:
            place += ":80"  # a host is allowed without encryption only by its port
        return (  # what to do comes first: a report shows the beginning
            f"no key was sent to {self.host}: add hosts=[{place!r}] to the credential that belongs there, or provider= "
            f'or base_url= (in agentos.toml: hosts = ["{place}"]); {self.detail}'
        )


@error_fields()
class InvariantViolated(AgentOSError, AssertionError):
    """An invariant of the pool does not hold (checked only in debug mode): a bug in agentos."""

    name: str
    detail: str

    def describe(self) -> str:
        return f"invariant {self.name} does not hold: {self.detail}; please report this"


@error_fields()
class LeaseLost(AgentOSError):
    """A lease ended without being released; the credential may have another holder now."""

    name: str
    token: int
    detail: str

    def describe(self) -> str:
        return (
            f"lease {self.token} on credential {self.name} is lost: {self.detail}; start no more calls with it, "
            "ask the pool for a new lease"
        )


# -- shared state of a pool --------------------------------------------------------------------------------------


@error_fields(init=False)
class StoreError(AgentOSError):
    """The shared state of the pool cannot be used. ``path`` is the file, or the URL without secrets."""

    path: str

    def problem(self) -> str:
        """Return what is wrong, without the remedy, which differs on a command line."""
        return self.describe()

    def _suggest_other(self) -> str:
        if "://" in self.path:
            return "name another server, or another pool there with ?pool=name"
        return 'name another file with store="sqlite:///path"'


@error_fields()
class StoreUnavailable(StoreError):
    """The file cannot be opened or written, or the server cannot be used.

    ``wants_login``: the server rejects the user and password in the URL, or requires them.
    """

    detail: str
    wants_login: bool = False

    def problem(self) -> str:
        return f"the pool's shared state {self.path} cannot be used: {self.detail}"

    def describe(self) -> str:
        login = "put user and password into the URL (redis://user:password@host)"
        remedy = login if self.wants_login else "fix that"
        return f'{self.problem()}; {remedy}, {self._suggest_other()}, or share nothing with store="memory"'


@error_fields()
class NotAStore(StoreError):
    """The file is not a store of agentos."""

    detail: str

    def problem(self) -> str:
        return f"{self.path} is not the shared state of a pool of agentos ({self.detail}); nothing was changed"

    def describe(self) -> str:
        return f"{self.problem()}, {self._suggest_other()}"


@error_fields()
class StoreTooNew(StoreError):
    """A newer version of agentos wrote this store."""

    version: int
    newest: int

    def describe(self) -> str:
        other = "pool" if "://" in self.path else "file"
        return (
            f"the pool's shared state {self.path} has format {self.version}, and this agentos knows formats up to "
            f"{self.newest}; nothing was changed, use the newer agentos that made it, or another {other}"
        )


@error_fields()
class StoreDamaged(StoreError):
    """The content of the store is inconsistent."""

    detail: str

    def describe(self) -> str:
        recovery = f"delete its keys, or {self._suggest_other()}" if "://" in self.path else "move the file away"
        return (
            f"the pool's shared state {self.path} is damaged: {self.detail}; stop the runs that use it and {recovery}. "
            "Limits and cooldowns are then learned again, nothing else is lost"
        )


@error_fields()
class StoreElsewhere(StoreError):
    """The file is in use by processes whose clock cannot be compared with that of this process."""

    detail: str

    def describe(self) -> str:
        return (
            f"the pool's shared state {self.path} is in use by processes of another boot or time namespace "
            f"({self.detail}), such as a container or another machine; use one file per machine"
        )


@error_fields()
class StoreOnNetworkShare(StoreError):
    """The file would be on a network share, where SQLite's locks do not work."""

    kind: str

    def problem(self) -> str:
        return (
            f"the pool's shared state {self.path} would lie on a network share ({self.kind}), where SQLite's locks "
            "do not hold"
        )

    def describe(self) -> str:
        return f'{self.problem()}; put it on a local disk, with AGENTOS_HOME or store="sqlite:///path"'


# -- raised by workers -------------------------------------------------------------------------------------------


class RateLimited(AgentOSError):
    """Raised by a worker that was rate-limited: the key cools down, the item waits and no attempt is counted."""

    retry_after: Any
    model: str | None

    def __init__(self, retry_after: Any = None, *, model: str | None = None) -> None:
        super().__init__(retry_after=retry_after, model=model)

    def describe(self) -> str:
        after = f"{round(self.retry_after, 1)} s" if isinstance(self.retry_after, int | float) else self.retry_after
        return "rate-limited" if after is None else f"rate-limited, retry after {after}"


@error_fields(kw_only=False)
class Transient(AgentOSError):
    """Raised by a worker (also as a subclass, or ``from`` another error) for a failure that a retry may fix."""

    reason: str = "transient failure"

    def describe(self) -> str:
        return self.reason


@error_fields(kw_only=False)
class Interrupted(AgentOSError):
    """Raised by a worker that stopped because of ``context.stopping``: the item runs again in the next run."""

    reason: str = "stopped on request"

    def describe(self) -> str:
        return self.reason


@error_fields()
class CommandFailed(AgentOSError):
    """A command failed: with an exit code other than 0, or by a signal.

    ``exit`` is its code, or ``signal`` the signal that ended it; ``tail`` has the last lines of its standard error, or
    of its output if that is empty.
    """

    reason: str
    exit: int | None = None
    signal: int | None = None
    tail: tuple[str, ...] = ()

    def describe(self) -> str:
        return self.reason


# -- attempts in other processes ---------------------------------------------------------------------------------


@error_fields(kw_only=False)
class WorkerLost(Transient):
    """The process or machine that ran the item was lost; a retry elsewhere may succeed."""

    reason: str = "the worker that ran it was lost"


@error_fields()
class EngineUnavailable(AgentOSError):
    """The cluster that should run the items cannot be reached; nothing was started."""

    place: str
    detail: str

    def describe(self) -> str:
        return f"{self.place} cannot be used: {self.detail}"


@error_fields()
class RemoteError(AgentOSError):
    """A worker in another process raised an error whose class is not available here.

    ``kind`` is the name of that class. The class of this error has the same name and the same builtin base classes: a
    ``TimeoutError`` there is a ``TimeoutError`` here.
    """

    kind: str
    text: str

    def describe(self) -> str:
        return self.text


@error_fields()
class NotPicklable(AgentOSError, TypeError):
    """Something that must be sent to another process, or back, cannot be pickled."""

    what: str
    detail: str

    def describe(self) -> str:
        return (
            f"{self.what} cannot be pickled, and so not be sent between processes ({self.detail}); use plain data and "
            "functions that stand in a module and hold no lock, client or open file, or an engine of threads"
        )


@error_fields()
class ValueNotRecorded(AgentOSError, ValueError):
    """The value that a worker returned cannot be written to the journal, so its item is not done."""

    detail: str

    def describe(self) -> str:
        return f"what the worker returned cannot be recorded: {self.detail}"


# -- raised by runs ----------------------------------------------------------------------------------------------


@error_fields()
class DuplicateItems(AgentOSError, ValueError):
    """Two items of the input have the same id; their results could not be told apart."""

    examples: list[tuple[str, int, int]]
    count: int

    def describe(self) -> str:
        shown = "; ".join(f"{id_!r} at items[{first}] and items[{again}]" for id_, first, again in self.examples)
        more = f" and {self.count - len(self.examples)} more" if self.count > len(self.examples) else ""
        return f"item ids must differ: {shown}{more}; nothing was started"


@error_fields()
class InputFailed(AgentOSError):
    """The input raised while items were taken from it. Items taken before were finished first.

    ``stats`` and ``results`` are those of the run until then; the cause is the error of the input.
    """

    reason: str
    stats: Any = None
    results: Any = None

    def describe(self) -> str:
        return f"the input failed: {self.reason}; the items read before were finished, the rest was not read"


@error_fields(init=False)
class JournalError(AgentOSError):
    """The journal cannot be used. Nothing in it was changed."""

    path: str


@error_fields()
class JournalInUse(JournalError):
    """Another run is using this journal."""

    owner: str

    def describe(self) -> str:
        return f"the journal {self.path} is in use by {self.owner}; wait for that run, stop it, or use another journal"


@error_fields()
class NotAJournal(JournalError):
    """The file is not a journal of agentos."""

    found: str

    def describe(self) -> str:
        return f"{self.path} is not a journal of agentos ({self.found}); nothing was changed, name another path"


@error_fields()
class JournalTooNew(JournalError):
    """A newer version of agentos wrote this journal."""

    version: int
    known: int

    def describe(self) -> str:
        return (
            f"the journal {self.path} has format {self.version}, and this agentos knows formats up to {self.known}; "
            "nothing was changed, use the newer agentos that wrote it"
        )


@error_fields()
class JournalDamaged(JournalError):
    """The content of the journal is inconsistent."""

    detail: str
    missing: int | None = None

    def describe(self) -> str:
        return (
            f"the journal {self.path} is damaged: {self.detail}; nothing was changed. Keep a copy; then restore it "
            "from a backup, start a new journal, or go on with what is left of it: accept_loss=True"
        )


@error_fields()
class JournalMismatch(JournalError):
    """The journal belongs to other work."""

    what: str
    recorded: str
    given: str

    def describe(self) -> str:
        return (
            f"the journal {self.path} was written for another {self.what}: recorded {self.recorded}, now {self.given}; "
            "nothing was started, use another journal or what was recorded"
        )


@error_fields()
class JournalUnavailable(JournalError):
    """The journal cannot be written, and waiting does not help. Acknowledged records are kept."""

    detail: str

    def describe(self) -> str:
        return f"the journal {self.path} cannot be used: {self.detail}; what is not recorded in it runs again"
