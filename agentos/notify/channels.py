"""Send a message to a command or a webhook. An error never shows the address of a webhook: that is a secret."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from .targets import NotifyTarget

TIMEOUT: Final = 5.0  # seconds for one try
TRIES: Final = 3

_LONGEST: Final = {"discord": 2_000, "slack": 3_000, "teams": 3_000}


class NotSent(Exception):
    """A message could not be sent; the text says why, without the address."""


def send(target: NotifyTarget, facts: Mapping[str, Any], *, timeout: float = TIMEOUT) -> None:
    """Send *facts*, which have a ``text`` for people. Raises NotSent."""
    if target.command:
        _run(target.command, json.dumps(facts), timeout)
    else:
        _post(target.url, build_body(target.format, facts), timeout)


def build_body(form: str, facts: Mapping[str, Any]) -> bytes:
    """Return the body of a webhook in the form that its service reads."""
    text = str(facts["text"])[: _LONGEST.get(form)]
    if form == "slack":  # else "<!channel>" in a name would call everybody
        body: Any = {"text": text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")}
    elif form == "discord":
        body = {"content": text, "allowed_mentions": {"parse": []}}
    elif form == "teams":
        card = {"type": "AdaptiveCard", "version": "1.4", "body": [{"type": "TextBlock", "text": text, "wrap": True}]}
        attachment = {"contentType": "application/vnd.microsoft.card.adaptive", "content": card}
        body = {"type": "message", "attachments": [attachment]}
    else:
        body = facts
    return json.dumps(body).encode()


def _run(command: tuple[str, ...], text: str, timeout: float) -> None:
    """Run *command* with *text* on its standard input; end it and all it started if it takes too long."""
    try:
        process = subprocess.Popen(  # noqa: S603 - the user's own command, without a shell
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        raise NotSent(f"it cannot be started: {error.strerror}") from None
    with process:
        try:
            process.communicate(text.encode(), timeout=timeout)
        except subprocess.TimeoutExpired:
            raise NotSent(f"it took longer than {timeout:g} s") from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        raise NotSent(f"it ended with exit code {process.returncode}")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follow no redirect: a message goes where its user said, or nowhere."""

    def redirect_request(self, *arguments: Any, **more: Any) -> None:
        return None


def _post(url: str, body: bytes, timeout: float) -> None:
    if urlsplit(url).scheme not in ("http", "https"):
        raise NotSent("its address is not an http or https URL")
    request = urllib.request.Request(  # noqa: S310 - the scheme is checked
        url, body, {"Content-Type": "application/json", "User-Agent": "agentos"}, method="POST"
    )
    try:
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=timeout) as answer:
            answer.read(1024)
    except urllib.error.HTTPError as error:
        error.close()
        raise NotSent(f"it answered {error.code}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise NotSent(f"it cannot be reached: {type(reason).__name__}") from None
