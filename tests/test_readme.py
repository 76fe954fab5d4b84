"""What the documents show, works."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from agentos import Credential, CredentialCoordinator
from agentos.simulator import KeyPlan, Latency, ProviderPlan, QuotaPlan, Running, Simulator, organisations

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
EXAMPLE = re.compile(r"<!-- a test runs this example -->\n```python\n(.*?)```", re.DOTALL)
TYPED = re.compile(r"<!-- a test types this -->\n```console\n(.*?)```", re.DOTALL)
RECIPE = re.compile(r"<!-- a test types this, too -->\n```sh\n(.*?)```", re.DOTALL)
FILE = re.compile(r"<!-- a test uses this as (\S+) -->\n```\w+\n(.*?)```", re.DOTALL)
SDKS = re.compile(r"<!-- a test runs this with the real SDKs -->\n```python\n(.*?)```", re.DOTALL)
SHOWN = re.compile(r"<!-- a test runs this -->\n```python\n(.*?)```", re.DOTALL)
NEXT = "=== next ==="

QUESTION = [{"role": "user", "content": "Why is tea hot?"}]


def run(*arguments: str, cwd: Path = ROOT) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, timeout=150, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def newcomer(tmp_path: Path) -> Newcomer:
    return Newcomer(tmp_path)


class Newcomer:
    """A person with a home, an empty folder and a shell that knows the command."""

    def __init__(self, place: Path) -> None:
        self.folder = place / "folder"
        self.tools = place / "bin"
        for folder in (self.folder, self.tools, place / "home"):
            folder.mkdir()
        self.tool("agentos", f'exec {shlex.quote(sys.executable)} -m agentos.cli "$@"')
        kept = {name: value for name, value in os.environ.items() if not re.search("API_KEY|AGENTOS|^GIT_", name)}
        self.environment = kept | {
            "HOME": str(place / "home"),
            "XDG_CONFIG_HOME": str(place / "home" / ".config"),
            "XDG_STATE_HOME": str(place / "home" / ".local"),
            "PATH": f"{self.tools}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
        }

    def tool(self, name: str, script: str) -> None:
        self._script(self.tools / name, f"#!/bin/sh\n{script}\n")

    def write(self, name: str, text: str) -> None:
        self._script(self.folder / name, text)

    def type(self, text: str) -> str:
        """What a shell prints that is given *text*; its exit code does not matter."""
        done = subprocess.run(
            ["sh", "-c", text],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=150,
            check=False,
        )
        return done.stdout

    def results(self, name: str) -> list[dict[str, Any]]:
        lines = (self.folder / ".agentos" / "runs" / name / "results.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    @staticmethod
    def _script(path: Path, text: str) -> None:
        path.write_text(text)
        path.chmod(0o755)


def shown_in(block: str) -> list[tuple[str, list[str]]]:
    """The commands of a console block, each with the lines that are shown of what it prints."""
    shown: list[tuple[str, list[str]]] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            shown.append((line[2:], []))
        else:
            shown[-1][1].append(line)
    return shown


def without_numbers(text: str) -> list[str]:
    """Lines that can be compared: what is counted and measured is different each time."""
    return [re.sub(r"\d+", "N", line) for line in text.splitlines()]


def recipe(name: str) -> str:
    (found,) = [text for text in RECIPE.findall(README) if f"--name {name} " in text]
    return str(found)


def file_of(name: str) -> str:
    files: dict[str, str] = dict(FILE.findall(README))
    return files[name]


SECRETS = {
    "openai": "sk-proj-not-a-real-key",
    "anthropic": "sk-ant-not-a-real-key",
    "gemini": "AIza-not-a-real-key",
    "mistral": "not-a-real-key-of-mistral",
    "gateway": "not-a-real-gateway-token",
}


@pytest.fixture
def providers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    """All that httpx2 sends goes to one simulated provider, whomever it is addressed to."""
    keys = [KeyPlan(secret, "quota", name=name) for name, secret in SECRETS.items()]
    sends, sends_async = httpx2.HTTPTransport.handle_request, httpx2.AsyncHTTPTransport.handle_async_request
    with (
        Simulator(ProviderPlan((QuotaPlan("quota"),), tuple(keys), latency=Latency(0.0, 0.0))) as provider,
        httpx2.HTTPTransport() as wire,
    ):
        there = httpx2.URL(provider.url)

        def redirect(request: httpx2.Request) -> httpx2.Request:
            path = request.url.raw_path if request.url.host != "api.mistral.ai" else b"/mistral" + request.url.raw_path
            request.url = there.copy_with(raw_path=path)
            return request

        def send(_: httpx2.HTTPTransport, request: httpx2.Request) -> httpx2.Response:
            return sends(wire, redirect(request))

        async def send_async(transport: httpx2.AsyncHTTPTransport, request: httpx2.Request) -> httpx2.Response:
            return await sends_async(transport, redirect(request))

        monkeypatch.setattr(httpx2.HTTPTransport, "handle_request", send)
        monkeypatch.setattr(httpx2.AsyncHTTPTransport, "handle_async_request", send_async)
        yield provider


def names_in_the_middle_of_a_program() -> dict[str, Any]:
    """What an excerpt takes for granted: the SDKs, keys, a pool, a client."""
    from anthropic import Anthropic
    from google import genai
    from mistralai.client import Mistral
    from openai import OpenAI

    pool = CredentialCoordinator([Credential(SECRETS["openai"])])
    http = httpx2.Client(transport=pool.transport())
    return {
        **{f"{name}_key": secret for name, secret in SECRETS.items()},
        **{f"{place}_key": f"not-a-real-key-of-{place}" for place in ("north", "west", "eu")},
        "keys": [SECRETS["openai"]],
        "gateway_token": SECRETS["gateway"],
        "httpx2": httpx2,
        "Anthropic": Anthropic,
        "genai": genai,
        "Mistral": Mistral,
        "OpenAI": OpenAI,
        "Credential": Credential,
        "CredentialCoordinator": CredentialCoordinator,
        "pool": pool,
        "client": OpenAI(api_key="pool", http_client=http, max_retries=0),
        "question": QUESTION,
    }


def test_the_tour_can_be_typed_and_prints_what_it_shows(newcomer: Newcomer) -> None:
    blocks = [shown_in(block) for block in TYPED.findall(README)]
    secrets = re.findall(r"_API_KEY_\d=(\S+)", README)

    # Two seconds of a machine that does nothing else: until some items are done.
    done = 'until [ "$(wc -l < .agentos/runs/count/results.jsonl)" -ge 8 ] 2>/dev/null; do /bin/sleep 0.02; done'
    newcomer.tool("sleep", f'if [ "$1" = 2 ]; then {done}; else exec /bin/sleep "$1"; fi')

    assert len(blocks) >= 5
    assert len(secrets) == 2
    for block in blocks:
        printed = newcomer.type("\n".join(f"{command}\necho '{NEXT}'" for command, _ in block)).split(f"{NEXT}\n")
        assert len(printed) == len(block) + 1
        for (command, shown), told in zip(block, printed[:-1], strict=True):
            lines = without_numbers(told)
            missing = [line for line in without_numbers("\n".join(shown)) if line not in lines]
            assert not missing, f"{command} does not print {missing}, but:\n{told}"
            assert not any(secret in told for secret in secrets)


# An agent as claude is: it commits, and prints events as JSON. Issue 2 is rate-limited once, issue 3 fails.
CLAUDE = """
echo "$AGENTOS_ITEM" >> "$HOME/called"
while [ "$1" != --session-id ] && [ "$1" != --resume ]; do shift; done
say() {
    echo '{"type":"system","subtype":"init","session_id":"'"$4"'"}'
    echo '{"type":"result","subtype":"success","is_error":'"$1"',"api_error_status":'"$2"',"result":"'"$3"'",' \
        '"session_id":"'"$4"'","num_turns":1}'
}
case $AGENTOS_ITEM in
2) mkdir "$HOME/limited" 2>/dev/null && { say true 429 'API Error: Rate limit reached' "$2"; exit 0; } ;;
3) say true 400 'API Error: 400 invalid_request' "$2"; exit 0 ;;
esac
git commit -q --allow-empty -m "fix $AGENTOS_ITEM" && say false null fixed "$2"
"""


# The origin is away when the branch of issue 4 is pushed for the first time.
REFUSES_ONCE = """#!/bin/sh
while read -r _ _ name; do
    case $name in *-4) mkdir away 2>/dev/null && exit 1 ;; esac
done
exit 0
"""


def test_the_recipe_for_coding_agents_pays_no_agent_twice_and_loses_no_issue(newcomer: Newcomer) -> None:
    newcomer.write("issues.txt", "".join(f"{number}\n" for number in range(1, 7)))
    newcomer.tool("claude", CLAUDE)
    secrets = {f"ANTHROPIC_API_KEY_{number}": f"not-a-real-{number}-key" for number in (1, 2, 3)}
    newcomer.environment |= secrets | {
        f"GIT_{who}_{what}": "a@b.c" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
    }
    newcomer.type(
        "git init -q . && git commit -q --allow-empty -m first && git clone -q --bare . ../origin.git "
        "&& git remote add origin ../origin.git"
    )
    hook = newcomer.folder.parent / "origin.git" / "hooks" / "pre-receive"
    hook.write_text(REFUSES_ONCE)
    hook.chmod(0o755)

    told = newcomer.type(recipe("fix"))

    assert "fix: 5 of 6 done, 1 failed, 1 retried, 1 rate-limited" in told
    outcomes = {result["id"]: (result["outcome"], result["error"]) for result in newcomer.results("fix")}
    assert [number for number, (outcome, _) in outcomes.items() if outcome != "done"] == ["3"]
    assert outcomes["3"][1] == "API Error: 400 invalid_request"
    called = Path(newcomer.environment["HOME"], "called").read_text().split()
    assert sorted(called) == ["1", "2", "2", "3", "4", "5", "6"]
    pushed = newcomer.type("git ls-remote --heads origin 'fix-*' | cut -d/ -f3").split()
    assert sorted(pushed) == ["fix-1", "fix-2", "fix-4", "fix-5", "fix-6"]
    assert newcomer.type("git branch --list 'fix-*'") == ""  # nothing is pushed into the checkout
    trees = [path.name for path in newcomer.folder.glob(".agentos/runs/fix/trees/*")]
    assert trees == ["3"]  # what is pushed is not needed any more


def test_the_recipe_for_prompts_asks_each_of_them_once(newcomer: Newcomer) -> None:
    newcomer.write("ask.py", file_of("ask.py"))
    prompts = [{"id": f"q{number}", "prompt": f"What is {number}?"} for number in range(12)]
    newcomer.write("prompts.jsonl", "".join(f"{json.dumps(prompt)}\n" for prompt in prompts))
    plan = organisations({"acme": 1, "globex": 1}, rpm=6_000)
    with Simulator(plan) as provider:
        newcomer.environment |= {f"OPENAI_API_KEY_{n}": key for n, key in enumerate(provider.keys, start=1)}
        newcomer.environment["OPENAI_BASE_URL"] = provider.base_url

        told = newcomer.type(recipe("night"))

        assert "night: 12 of 12 done, 0 failed" in told
        assert provider.statistics().total.calls == 12
    assert all(result["value"] for result in newcomer.results("night"))


def test_the_readme_can_be_read_in_five_minutes() -> None:
    assert len(README.splitlines()) <= 260


def test_the_readme_example_runs_and_asks_nothing_twice(tmp_path: Path) -> None:
    (example,) = EXAMPLE.findall(README)

    assert len([line for line in example.splitlines() if line.strip()]) <= 10
    lines = run("-c", example, cwd=tmp_path).splitlines()
    assert sorted(line.split(":")[0] for line in lines) == ["four", "one", "three", "two"]
    assert all(re.fullmatch(r"(\w+): the answer to \1 \(by key-[12]\)", line) for line in lines)

    never = example.replace("return f", "raise AssertionError  # ")
    assert sorted(run("-c", never, cwd=tmp_path).splitlines()) == sorted(lines)


def test_one_transport_serves_the_four_sdks_and_each_gets_its_own_providers_key(providers: Running) -> None:
    (example,) = SDKS.findall(README)
    own_shape = [Credential(SECRETS[name]) for name in ("openai", "anthropic", "gemini")]
    others = [
        Credential(SECRETS["mistral"], provider="mistral"),
        Credential(SECRETS["gateway"], hosts=["llm.internal"]),
    ]
    names = {**names_in_the_middle_of_a_program(), "pool": CredentialCoordinator([*own_shape, *others])}

    exec(example, names)

    names["openai"].chat.completions.create(model="gpt-4o-mini", messages=QUESTION)
    names["anthropic"].messages.create(model="claude-sonnet-4", messages=QUESTION, max_tokens=8)
    names["gemini"].models.generate_content(model="gemini-2.5-flash", contents="Why is tea hot?")
    names["mistral"].chat.complete(model="mistral-small", messages=QUESTION)
    called = {name: tally.calls for name, tally in providers.statistics().keys.items()}
    assert called == {"openai": 1, "anthropic": 1, "gemini": 1, "mistral": 1, "gateway": 0}


ON_TRANSPORTS = [
    pytest.param(example, id=section.partition("\n")[0].strip("# "))
    for section in (ROOT / "docs" / "http.md").read_text().split("\n## ")
    for example in SHOWN.findall(section)
]


@pytest.mark.parametrize("example", ON_TRANSPORTS)
def test_what_the_page_on_transports_shows_works(providers: Running, example: str) -> None:
    names = names_in_the_middle_of_a_program()

    exec(example, names)

    assert not providers.statistics().total.rejected
    assert "stats" not in names or names["stats"].success_count == 2


def test_the_page_on_transports_shows_something() -> None:
    assert len(ON_TRANSPORTS) >= 12


def test_every_example_in_the_documents_is_python() -> None:
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for block in re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL):
            compile(block, str(path), "exec", flags=0x2000)  # top-level await is allowed in an excerpt


def test_the_example_of_a_transport_tells_its_story() -> None:
    told = run("examples/sdk_transport.py")

    assert told.count(" by key-") == 12
    assert "key-1: dead" in told
    assert "refused before" in told
    assert "sk-proj-" not in told


def test_the_example_on_a_cluster_loses_nothing_with_a_worker() -> None:
    told = run("examples/on_a_cluster.py")

    assert "killing worker process" in told
    assert "40 of 40 done, 0 failed" in told
    assert "most calls at once on a key: 1" in told
    assert "sk-proj-" not in told


def test_the_demo_tells_its_story() -> None:
    told = run("examples/first_run.py")

    assert told.count(" done with key-") >= 15
    assert told.count("key-2 rate-limited for 0.4s") == 1
    assert "30 of 30 done, 0 failed" in told
    assert "demo-secret" not in told


def test_the_documents_link_to_what_is_there() -> None:
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text()):
            assert (path.parent / target).exists(), f"{path.name} links to {target}"


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], []])
def test_the_command_answers(arguments: list[str]) -> None:
    assert "agentos" in run("-c", "import sys; from agentos.cli.main import main; sys.exit(main())", *arguments)
