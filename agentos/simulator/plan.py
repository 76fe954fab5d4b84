"""The description of a simulated provider: its quotas, keys, latency and behaviour. Plain, frozen values."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, TypedDict, Unpack, get_args

Refill = Literal["continuous", "fixed", "sliding", "gcra"]
Style = Literal["openai", "anthropic", "gemini"]
Dialect = Literal["full", "compatible", "x-ratelimit", "ietf", "retry-after", "none"]
RetryAfter = Literal["seconds", "exact"]
Mishap = Literal["drop", "stall", "cut", "hang"]

MINUTE = 60.0
DAY = 86_400.0

# Names go into headers and statistics, so they are limited to what is safe and readable in both.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_SECRET = re.compile(r"[!-~]{1,4096}")
_FRAMING = frozenset(("connection", "content-length", "transfer-encoding"))
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class QuotaPlan:
    """The limits of one organisation, whatever the number of its keys. None: no such limit.

    ``rpm`` and ``tpm`` are requests and tokens per minute, ``window`` is the seconds in which the provider counts and
    states them: of 600 a minute and ``window=5``, headers say 50. ``refill="continuous"`` is a bucket that starts full
    and holds a window's worth, or ``request_burst`` and ``token_burst``; ``"fixed"`` gives the whole window's worth at
    the start of each window, ``"sliding"`` never gives more in any window, ``"gcra"`` is the bucket by another
    algorithm. From ``changes_at`` on, in seconds, both limits are ``changes_to`` times as large.
    ``daily_requests`` are renewed every 24 hours from the start. ``money`` is how many calls it can pay for; a
    ``spent`` quota can pay for none.
    """

    name: str
    rpm: float | None = None
    tpm: float | None = None
    request_burst: float | None = None
    token_burst: float | None = None
    concurrency: int | None = None
    daily_requests: int | None = None
    spent: bool = False
    money: int | None = None
    refill: Refill = "continuous"
    window: float = MINUTE
    changes_at: float | None = None
    changes_to: float = 0.5

    def __post_init__(self) -> None:
        _require_name("name", self.name)
        _require_choice("refill", self.refill, Refill)
        _require_flag("spent", self.spent)
        for each in ("rpm", "tpm", "request_burst", "token_burst", "window", "changes_at", "changes_to"):
            _require_positive(each, getattr(self, each))
        for each in ("concurrency", "daily_requests"):
            _require_whole(each, getattr(self, each), least=1)
        _require_whole("money", self.money, least=0)
        for burst, limit in (("request_burst", "rpm"), ("token_burst", "tpm")):
            if getattr(self, burst) is not None:
                if getattr(self, limit) is None:
                    raise ValueError(f"{burst} needs {limit}: without that there is no limit to burst")
                if self.refill in ("fixed", "sliding"):
                    raise ValueError(f"{burst} does not go with a {self.refill} window, which is given at once")
        least = self.requests_at_once * (1 if self.changes_at is None else min(1, self.changes_to))
        if least < 1:
            name = "rpm" if self.request_burst is None else "request_burst"
            raise ValueError(f"{name} must allow one request at once; for a slower rate give request_burst=1")

    @property
    def requests_at_once(self) -> float:
        """Return the most requests that an unused quota admits at one instant, by its request limit."""
        return _at_once(self.rpm, self.window, self.request_burst)

    @property
    def tokens_at_once(self) -> float:
        """Return the largest call, in tokens, that this quota can ever admit."""
        return _at_once(self.tpm, self.window, self.token_burst)


@dataclass(frozen=True, slots=True)
class KeyPlan:
    """One key: its secret, the name of its quota, and its faults.

    ``name`` is used in statistics and scripts, by default ``key-1`` and so on by position; the secret is in no
    statistics, log or repr. A ``dead`` key is refused from the start, one with ``dies_after`` once that many of its
    calls were admitted. ``concurrency`` is a cap of this key alone, below that of its quota. Its answers take
    ``slowness`` times the plan's latency, at least 1.
    """

    secret: str = field(repr=False)
    quota: str
    dead: bool = False
    dies_after: int | None = None
    concurrency: int | None = None
    name: str = ""
    slowness: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.secret, str) or _SECRET.fullmatch(self.secret) is None:
            raise ValueError("secret must be text of visible ASCII characters, without spaces: it goes into a header")
        _require_name("quota", self.quota)
        _require_flag("dead", self.dead)
        _require_whole("dies_after", self.dies_after, least=0)
        _require_whole("concurrency", self.concurrency, least=1)
        _require_not_negative("slowness", self.slowness)
        if self.slowness < 1:
            raise ValueError(f"slowness must be at least 1, not {self.slowness!r}: no key is faster than its provider")
        if self.name != "":
            _require_name("name", self.name)
        if self.secret in (self.name, self.quota):
            raise ValueError("secret must differ from the names, which are shown")


@dataclass(frozen=True, slots=True)
class Latency:
    """The latency of an answer, in seconds: log-normal around *median*, never below *least*.

    ``sigma=0`` makes every answer take the median, ``median=0`` makes every answer take *least*.
    """

    median: float = 0.3
    sigma: float = 0.3
    least: float = 0.0

    def __post_init__(self) -> None:
        for each in ("median", "sigma", "least"):
            _require_not_negative(each, getattr(self, each))

    @property
    def shortest(self) -> float:
        """Return the shortest possible latency."""
        return self.least if self.sigma > 0 else max(self.median, self.least)

    @property
    def mean(self) -> float:
        """Return the expected latency."""
        if self.median == 0 or self.sigma == 0:
            return max(self.median, self.least)
        whole = self.median * math.exp(self.sigma**2 / 2)
        if self.least == 0:
            return whole
        # Draws below the least are raised to it; the others count as they are.
        edge = math.log(self.least / self.median) / self.sigma
        return self.least * _below(edge) + whole * _below(self.sigma - edge)

    def of(self, normal: float) -> float:
        """Return the latency for a draw from the standard normal distribution."""
        return max(self.least, self.median * math.exp(self.sigma * normal))


@dataclass(frozen=True, slots=True)
class Scripted:
    """A scripted outcome of one call, or of all calls in a period, instead of chance.

    ``call=17`` is the 17th call to arrive, counting from 1: of the key named *key*, or of all. ``at=3.0`` is the first
    call from that instant on; with ``until=5.0`` every call from 3.0 to just before 5.0.

    ``status`` is the outcome. An HTTP status below 500 other than 200 is a refusal: nothing is spent. 500 and above,
    ``"drop"`` (the connection ends without an answer), ``"stall"`` (no answer until the client leaves), ``"cut"`` (the
    answer ends in its middle) and ``"hang"`` (half the answer, or the first half of a stream's pieces, and then nothing
    until the client leaves) apply to admitted calls. 200 keeps a call from failing by chance. *headers* are added to
    the answer, *body* (text, or a value to be written as JSON) replaces it.
    """

    status: int | Mishap
    call: int | None = None
    at: float | None = None
    until: float | None = None
    key: str | None = None
    headers: Mapping[str, str] | tuple[tuple[str, str], ...] = ()
    body: str | Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.status, str):
            _require_choice("status", self.status, Mishap)
        elif not isinstance(self.status, int) or not 200 <= self.status <= 599 or 201 <= self.status <= 299:
            raise ValueError(f"status must be 200, 300 to 599, drop, stall, cut or hang, not {self.status!r}")
        if (self.call is None) == (self.at is None):
            raise ValueError("call or at must say which call it is, and not both")
        _require_whole("call", self.call, least=1)
        if self.at is not None:
            _require_not_negative("at", self.at)
        if self.until is not None and (self.at is None or not self.until > self.at):
            raise ValueError("until must come after at")
        if self.key is not None:
            _require_name("key", self.key)
        object.__setattr__(self, "headers", _header_pairs(self.headers))
        object.__setattr__(self, "body", self.text)

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Return the headers as names and values."""
        return _header_pairs(self.headers)

    @property
    def text(self) -> str | None:
        """Return the body as it is sent."""
        return self.body if self.body is None or isinstance(self.body, str) else json.dumps(self.body)


@dataclass(frozen=True, slots=True)
class ProviderPlan:
    """A provider: its quotas, the keys in them, and its behaviour.

    ``style`` selects whose answers it gives, where the route does not decide. ``dialect`` is how much it states of its
    limits: every header of its style; those of OpenAI without the organisation, as OpenAI-compatible providers do;
    ``X-RateLimit-Limit``, ``-Remaining`` and ``-Reset`` in whole seconds; the ``RateLimit`` fields of the IETF draft;
    ``retry-after`` alone; or nothing. Gemini states as much in its bodies.
    ``retry_after`` is that delay in whole seconds (rounded up, at least 1) or exact. With ``count_rejections`` a
    rate-limited call also spends one request, or what there is of one, so that hammering an empty quota keeps it empty;
    with ``"whole"`` only if a whole one is left.

    Of the admitted calls, ``error_rate`` end with 500 and ``overload_rate`` with the style's "overloaded"; they have
    spent what they cost. An answer has ``output_tokens`` of output, or what the caller allowed if that is less; with
    ``refund_tokens`` a call's unused reservation comes back when it ends. ``seed`` decides all chance, separately for
    each key. A refusal is answered after ``rejection_latency`` seconds.
    """

    quotas: tuple[QuotaPlan, ...]
    keys: tuple[KeyPlan, ...]
    latency: Latency = field(default_factory=Latency)
    style: Style = "openai"
    dialect: Dialect = "full"
    retry_after: RetryAfter = "seconds"
    count_rejections: bool | Literal["whole"] = False
    error_rate: float = 0.0
    overload_rate: float = 0.0
    rejection_latency: float = 0.005
    output_tokens: int = 16
    refund_tokens: bool = False
    seed: int = 0
    script: tuple[Scripted, ...] = ()

    def __post_init__(self) -> None:
        _require_choice("style", self.style, Style)
        _require_choice("dialect", self.dialect, Dialect)
        _require_choice("retry_after", self.retry_after, RetryAfter)
        if self.count_rejections != "whole":
            _require_flag("count_rejections", self.count_rejections)
        _require_flag("refund_tokens", self.refund_tokens)
        for each in ("error_rate", "overload_rate", "rejection_latency"):
            _require_not_negative(each, getattr(self, each))
        if self.failure_rate >= 1:
            raise ValueError("error_rate and overload_rate must leave some calls to succeed: together below 1")
        if not isinstance(self.latency, Latency):
            raise ValueError("latency must be a Latency")
        _require_whole("output_tokens", self.output_tokens, least=0)
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise ValueError(f"seed must be a whole number, not {self.seed!r}")
        for name, kind in (("quotas", QuotaPlan), ("keys", KeyPlan), ("script", Scripted)):
            object.__setattr__(self, name, _require_all(name, getattr(self, name), kind))
        self._check_keys()

    def _check_keys(self) -> None:
        if not self.keys:
            raise ValueError("keys must have at least one key")
        named = tuple(key if key.name else replace(key, name=f"key-{place}") for place, key in enumerate(self.keys, 1))
        object.__setattr__(self, "keys", named)
        quotas = _require_different("quotas", [quota.name for quota in self.quotas])
        names = _require_different("keys", [key.name for key in named])
        if len({key.secret for key in named}) < len(named):
            raise ValueError("keys must have different secrets")
        for key in named:
            if key.quota not in quotas:
                raise ValueError(f"keys: {key.name} is in quota {key.quota!r}, which is not in quotas")
        shown = names | quotas
        if any(key.secret in shown for key in named):
            raise ValueError("keys: a secret must differ from all names, which are shown")
        for entry in self.script:
            if entry.key is not None and entry.key not in names:
                raise ValueError(f"script: there is no key named {entry.key!r}")

    @property
    def failure_rate(self) -> float:
        """Return the share of admitted calls that fail by chance, from 0 to 1."""
        return self.error_rate + self.overload_rate

    @property
    def secrets(self) -> tuple[str, ...]:
        """Return the secrets of all keys, in order."""
        return tuple(key.secret for key in self.keys)

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as JSON values, for another process. It includes the secrets."""
        return asdict(self)

    @classmethod
    def from_dict(cls, told: Mapping[str, Any]) -> ProviderPlan:
        """Build a plan from :meth:`to_dict`. Missing values have their defaults; an unknown name is a ValueError."""
        known = dict(told)
        for name, kind in (("quotas", QuotaPlan), ("keys", KeyPlan), ("script", Scripted)):
            if name in known:
                if not isinstance(known[name], (list, tuple)):
                    raise ValueError(f"{name} must be a list")
                known[name] = tuple(_from_dict(kind, name, each) for each in known[name])
        if "latency" in known:
            known["latency"] = _from_dict(Latency, "latency", known["latency"])
        made: ProviderPlan = _from_dict(cls, "plan", known)
        return made


class QuotaOptions(TypedDict, total=False):
    """Options of every quota of a plan: see :class:`QuotaPlan`."""

    rpm: float | None
    tpm: float | None
    request_burst: float | None
    token_burst: float | None
    concurrency: int | None
    daily_requests: int | None
    spent: bool
    money: int | None
    refill: Refill
    window: float
    changes_at: float | None
    changes_to: float


class PlanOptions(QuotaOptions, total=False):
    """Options of a plan beside its quotas and keys: see :class:`ProviderPlan`."""

    latency: Latency
    style: Style
    dialect: Dialect
    retry_after: RetryAfter
    count_rejections: bool | Literal["whole"]
    error_rate: float
    overload_rate: float
    rejection_latency: float
    output_tokens: int
    refund_tokens: bool
    seed: int
    script: Sequence[Scripted]


def simulated_key(name: str) -> str:
    """Return a key of the form of OpenAI's, always the same for *name*.

    It looks like a real one, so that whatever treats keys by their form (redaction, recognition of the provider) is
    tried out too. Keys of different names share no eight characters in a row after the prefix.
    """
    letters = base64.b64encode(hashlib.shake_256(name.encode()).digest(60)).translate(None, b"+/=")
    return f"sk-proj-{letters[:40].decode()}"


def equal_keys(n: int, **options: Unpack[PlanOptions]) -> ProviderPlan:
    """Return a plan with *n* keys, each with its own quota, all with the same limits.

    Keys are named ``key-1`` and so on, quotas ``quota-1`` and so on; ``plan.secrets`` has the secrets for a client.
    """
    _require_whole("n", n, least=1)
    limits, manners = _split(options)
    quotas = tuple(QuotaPlan(f"quota-{place}", **limits) for place in range(1, n + 1))
    keys = tuple(KeyPlan(simulated_key(f"key-{place}"), f"quota-{place}") for place in range(1, n + 1))
    return ProviderPlan(quotas, keys, **manners)


def organisations(keys_of: Mapping[str, int], **options: Unpack[PlanOptions]) -> ProviderPlan:
    """Return a plan with one quota and some keys per organisation: ``organisations({"acme": 4, "beta": 2})``.

    All organisations have the same limits. The keys are named ``acme-1`` and so on.
    """
    if not keys_of:
        raise ValueError("keys_of must name at least one organisation")
    limits, manners = _split(options)
    keys = []
    for name, n in keys_of.items():
        _require_whole(f"keys_of[{name!r}]", n, least=1)
        keys += [KeyPlan(simulated_key(f"{name}-{at}"), name, name=f"{name}-{at}") for at in range(1, n + 1)]
    return ProviderPlan(tuple(QuotaPlan(name, **limits) for name in keys_of), tuple(keys), **manners)


def _split(options: PlanOptions) -> tuple[QuotaOptions, dict[str, Any]]:
    given: dict[str, Any] = dict(options)
    limits: Any = {name: given.pop(name) for name in QuotaOptions.__annotations__ if name in given}
    return limits, given


def _at_once(per_minute: float | None, window: float, burst: float | None) -> float:
    if per_minute is None:
        return math.inf
    return per_minute * (window / MINUTE) if burst is None else burst


def _below(edge: float) -> float:
    """Return the share of the standard normal distribution below *edge*."""
    return (1 + math.erf(edge / math.sqrt(2))) / 2


def _from_dict(kind: type[Any], name: str, values: object) -> Any:
    if not isinstance(values, Mapping):
        raise ValueError(f"{name} must be a mapping of names to values")
    unknown = set(values) - set(kind.__dataclass_fields__)
    if unknown:
        raise ValueError(f"{name} has no {', '.join(sorted(map(str, unknown)))}")
    missing = {"quotas", "keys"} if kind is ProviderPlan else {"secret", "quota"} if kind is KeyPlan else set()
    if missing - set(values):
        raise ValueError(f"{name} needs {', '.join(sorted(missing - set(values)))}")
    try:
        return kind(**values)
    except TypeError as error:
        raise ValueError(f"{name}: {error}") from None


def _header_pairs(headers: object) -> tuple[tuple[str, str], ...]:
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    try:
        found = tuple((name, value) for name, value in pairs)  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        raise ValueError("headers must be a mapping, or pairs of name and value") from None
    for name, value in found:
        if not isinstance(name, str) or not isinstance(value, str) or _HEADER.fullmatch(name) is None:
            raise ValueError("headers must be names and values of text")
        if name.lower() in _FRAMING:
            raise ValueError(f"headers: {name} is set by the server")
        if not value.isascii() or not value.isprintable():
            raise ValueError(f"headers: the value of {name} must be printable ASCII")
    return found


def _require_name(name: str, value: object) -> None:
    if not isinstance(value, str) or _NAME.fullmatch(value) is None:
        raise ValueError(f"{name} must be 1 to 64 letters, digits, dots, dashes or underscores")


def _require_choice(name: str, value: object, choices: Any) -> None:
    if value not in get_args(choices):
        raise ValueError(f"{name} must be one of {', '.join(get_args(choices))}, not {value!r}")


def _require_flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, not {value!r}")


def _require_positive(name: str, value: object) -> None:
    if value is not None:
        _require_not_negative(name, value)
        if value == 0:
            raise ValueError(f"{name} must be above zero; leave it out for no limit")


def _require_not_negative(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        raise ValueError(f"{name} must be a number, not below zero, not {value!r}")


def _require_whole(name: str, value: object, *, least: int) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
        raise ValueError(f"{name} must be a whole number from {least}, not {value!r}")


def _require_all(name: str, values: object, kind: type[Any]) -> tuple[Any, ...]:
    found = tuple(values) if isinstance(values, Sequence) else (None,)
    if not all(isinstance(each, kind) for each in found):
        raise ValueError(f"{name} must be a sequence of {kind.__name__}")
    return found


def _require_different(name: str, found: Sequence[str]) -> set[str]:
    different = set(found)
    if len(different) < len(found):
        raise ValueError(f"{name} must have different names")
    return different
