"""Twenty canaries, where a user may keep them, and a hunter that finds any eight bytes of them in whatever is left.

The hunter writes the forms of a secret down anew instead of asking the masker: it would share the masker's blind spots.
"""

from __future__ import annotations

import base64
import json
import os
import random
import re
import string
import subprocess
import sys
import threading
import urllib.parse
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

WINDOW = 8
# Eight hex digits of a secret stand in somebody's hash by chance: once in some fifty hunts. Ten do not.
_HEX_WINDOW = 10
_HEX = re.compile(rb"[0-9a-fA-F]+")
_NOTHING = re.compile(rb"\0{9,}")  # most of a database file


@dataclass(frozen=True, slots=True)
class Canary:
    """A secret that must not be found. ``name`` is what messages call it."""

    name: str
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True, order=True)
class Find:
    """So much of a canary was found, and where; what it is stays unsaid."""

    place: str
    canary: str
    form: str


# -- canaries ---------------------------------------------------------------------------------------------------------


def _made(alphabet: str, length: int, seed: int) -> str:
    return "".join(random.Random(seed).choices(alphabet, k=length))


_ALNUM = string.ascii_letters + string.digits

CANARIES = tuple(
    Canary(name, secret)
    for name, secret in {
        # in variables of the environment
        "ordinary": "sk-qZ7-" + _made(_ALNUM, 48, 1),
        "long": _made(_ALNUM, 400, 2),
        "assignments": _made("abcXYZ019=+&%", 44, 3),
        "json-special": _made('abcXYZ019\\"/', 44, 4),
        "quotes": _made("abXY01'\"", 40, 5),
        # in a file, a line each
        "eight": "wK7#zP2q",
        "eleven": "Vt9-Lx4.Rm2",
        "slashes": "q" + _made("abcXYZ019/+", 44, 6),
        "base64": base64.b64encode(random.Random(7).randbytes(31)).decode(),
        "digits": _made(string.digits, 24, 8),
        # in variables that agentos.toml names
        "hex": _made("0123456789abcdef", 40, 9),
        "capitals": "AKQZ" + _made(string.ascii_uppercase + string.digits, 16, 10),
        "shell-special": "z" + _made("abXY01$`!;&|<>(){}[]*?~#", 44, 11),
        # in files that it names
        "token-in-three-parts": ".".join(_made(_ALNUM + "-_", 30, seed) for seed in (12, 13, 14)),
        "uuid": "5e0c7f1a-93bd-4b6e-8a51-d27f04c9e6b8",
        "dashes": _made(_ALNUM + "-_", 43, 15),
        # from commands that it names
        "words": "plumQ-Orbit-ninety-Walrus-felt",
        "quoted-already": _made("abcXYZ", 6, 16) + "%2F" + _made("abcXYZ", 6, 17) + "%3D%25" + _made("abcXYZ", 6, 18),
        "backslash-at-the-end": _made(_ALNUM, 20, 19) + "\\",
        "punctuation": "k" + _made("ab1@:,;=+~^.", 44, 20),
    }.items()
)
_IN_ENVIRONMENT, _IN_FILE, _BY_VARIABLE, _BY_FILE, _BY_COMMAND = (
    CANARIES[:5],
    CANARIES[5:10],
    CANARIES[10:13],
    CANARIES[13:16],
    CANARIES[16:],
)

# What no HTTP header could carry; agentos refuses it, and must not quote it when it does.
UNUSABLE = (
    Canary("letters-of-the-world", _made("éßøжщыΩψλ日本語中文字한국어", 24, 21)),
    Canary("spaces", "jQ8 zzTop vWx 77Lm yyP k" + _made(_ALNUM, 12, 22)),
    Canary("lines", "\n".join(("--- QZX-KEY ---", *(_made(_ALNUM, 64, seed) for seed in (23, 24)), "--- ZQX-FIN ---"))),
)


def forms_of(secret: str) -> Iterator[tuple[str, bytes]]:
    """The secret as programs write it, and what that way of writing is called."""
    raw = secret.encode()
    yield "raw", raw
    yield "in capitals", raw.upper()
    yield "in small letters", raw.lower()
    yield "in swapped case", raw.swapcase()
    yield "url", urllib.parse.quote(secret, safe="").encode()
    yield "url form", urllib.parse.quote_plus(secret).encode()
    yield "json", json.dumps(secret)[1:-1].encode()
    yield "json in utf-8", json.dumps(secret, ensure_ascii=False)[1:-1].encode()
    yield "hex", raw.hex().encode()
    yield "HEX", raw.hex().upper().encode()
    for shift in range(3):
        text = base64.b64encode(bytes(shift) + raw + bytes(2))
        # Only the characters that the secret alone decides, not its neighbours.
        text = text[-(-8 * shift // 6) : 8 * (shift + len(raw)) // 6]
        yield f"base64 after {shift}", text
        yield f"base64url after {shift}", text.translate(bytes.maketrans(b"+/", b"-_"))


# -- the hunt ---------------------------------------------------------------------------------------------------------


class Hunter:
    """Finds every window of every form of some canaries."""

    def __init__(self, canaries: Iterable[Canary] = (*CANARIES, *UNUSABLE)) -> None:
        self._windows: dict[bytes, list[tuple[bytes, str, str]]] = {}
        for canary in canaries:
            for form, text in forms_of(canary.secret):
                for window in _windows(text):
                    self._windows.setdefault(window[:WINDOW], []).append((window, canary.name, form))

    def in_bytes(self, data: bytes, place: str) -> set[Find]:
        """What of the canaries stands in *data*."""
        data = _NOTHING.sub(bytes(WINDOW), data)
        windows = self._windows
        return {
            Find(place, canary, form)
            for start in range(len(data) - WINDOW + 1)
            if data[start : start + WINDOW] in windows
            for window, canary, form in windows[data[start : start + WINDOW]]
            if data.startswith(window, start)
        }

    def in_files(self, folder: Path) -> set[Find]:
        """The same of all files below *folder*, their names, and where links lead."""
        found: set[Find] = set()
        for at, folders, files in os.walk(folder):
            for name in (*folders, *files):
                path = Path(at, name)
                place = str(path.relative_to(folder))
                found |= self.in_bytes(os.fsencode(name), f"a name in {Path(place).parent}")
                if path.is_symlink():
                    found |= self.in_bytes(os.fsencode(path.readlink()), place)
                elif path.is_file():
                    found |= self.in_bytes(path.read_bytes(), place)
        return found


def _windows(text: bytes) -> Iterator[bytes]:
    for start in range(len(text) - WINDOW + 1):
        window = text[start : start + WINDOW]
        if _HEX.fullmatch(window):
            window = text[start : start + _HEX_WINDOW]
            if len(window) < _HEX_WINDOW and len(text) >= _HEX_WINDOW:
                continue
        yield window


class CommandLines:
    """While entered, reads the command lines of all processes, over and over."""

    def __init__(self) -> None:
        self.seen: set[bytes] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> CommandLines:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def look(self) -> None:
        """Read them once."""
        for entry in os.listdir("/proc"):
            if entry.isdecimal():
                try:
                    self.seen.add(Path("/proc", entry, "cmdline").read_bytes())
                except OSError:
                    pass  # it has ended

    def _watch(self) -> None:
        while not self._over.wait(0.05):
            self.look()


# -- a user, with canaries everywhere ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Said:
    """What a command printed, and how it ended."""

    what: str
    code: int
    output: bytes


class User:
    """Somebody with secrets in ``keeps``; in ``ground``, all that agentos may write to, none of them may be found."""

    def __init__(self, folder: Path) -> None:
        self.keeps = folder / "keeps"  # secrets, and what the leaking programs write for us to see
        self.ground = folder / "ground"
        self.cwd = self.ground / "work"
        self.said: list[Said] = []
        for each in (self.keeps, self.cwd, *(self.ground / name for name in ("home", "state", "tmp", "config"))):
            each.mkdir(parents=True)
        self.environ = {
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "TERM": "xterm-256color",
            "HOME": str(self.ground / "home"),
            "TMPDIR": str(self.ground / "tmp"),
            "AGENTOS_HOME": str(self.ground / "state"),
            "XDG_CONFIG_HOME": str(self.ground / "config"),
            "LEAKS_TO": str(self.keeps),
        }

    def keep_canaries(self) -> list[str]:
        """Put each where some way of giving it to agentos finds it. Returns what to type."""
        for number, canary in enumerate(_IN_ENVIRONMENT, start=1):
            self.environ[f"HUNTED_KEY_{number}"] = canary.secret
        # Programs have their own ideas of where a key belongs.
        self.environ["OTHER_TOOL_AUTH"] = "Basic " + base64.b64encode(f"me:{CANARIES[13].secret}".encode()).decode()
        self.keep("keys", "".join(f"{canary.secret}\n" for canary in _IN_FILE))
        entries = []
        for canary in (*_BY_VARIABLE, *_BY_FILE, *_BY_COMMAND):
            if canary in _BY_VARIABLE:
                variable = f"TOLD_{canary.name.upper().replace('-', '_')}"
                self.environ[variable] = canary.secret
                where = f"env = {json.dumps(variable)}"
            else:
                path = self.keep(canary.name, canary.secret + "\n")
                where = f"file = {json.dumps(path)}" if canary in _BY_FILE else f'command = ["cat", {json.dumps(path)}]'
            entries.append(f"[[credentials]]\nname = {json.dumps(canary.name)}\n{where}\n")
        config = self.keep("agentos.toml", "\n".join(entries))
        names = [canary.name for canary in (*_BY_VARIABLE, *_BY_FILE, *_BY_COMMAND)]
        return ["--config", config, "--keys", ",".join(["env:HUNTED_KEY_*", str(self.keeps / "keys"), *names])]

    def keep(self, name: str, text: str) -> str:
        """Put *text* into a file that only they may read; its path is returned."""
        path = self.keeps / name
        path.touch(mode=0o600)
        path.write_text(text)
        return str(path)

    def start(self, *typed: str, **more: object) -> subprocess.Popen[bytes]:
        """Start ``agentos`` with what was typed."""
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, **more}
        argv = [sys.executable, "-m", "agentos.cli", *typed]
        process: subprocess.Popen[bytes] = subprocess.Popen(argv, cwd=self.cwd, env=self.environ, **streams)  # type: ignore[call-overload]
        return process

    def types(self, *typed: str, what: str | None = None) -> Said:
        """Run ``agentos`` to its end. What it said is kept, and hunted through."""
        with self.start(*typed) as process:
            output, _ = process.communicate(timeout=150)
        return self.heard(what or " ".join(typed[:3]), process.returncode, output)

    def heard(self, what: str, code: int, output: bytes) -> Said:
        said = Said(what, code, output)
        self.said.append(said)
        return said

    def finds(self, hunter: Hunter) -> list[Find]:
        """All that is left lying about or was shown."""
        found = hunter.in_files(self.ground)
        for said in self.said:
            found |= hunter.in_bytes(said.output, f"output of {said.what}")
        return sorted(found)


def shown(finds: Sequence[Find], most: int = 40) -> str:
    """The finds for a person, without what was found."""
    lines = [f"{each.canary} ({each.form}) in {each.place}" for each in finds[:most]]
    return "\n".join([f"{len(finds)} finds", *lines])
