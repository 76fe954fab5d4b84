"""``agentos run``: its options and arguments."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from ..completion import complete_keys, offer
from ..config.run_options import AGENT_NAMES, FORMATS, HERE, PROGRESS
from ..session.agent_options import AgentFlags
from ..session.argv import ParsedArguments
from ..usage_error import UsageError

# After \b a paragraph keeps its lines.
EPILOG = """\b
Examples:
  agentos run -- echo {} ::: a b c
  agentos run tasks.txt --agent claude -- --model opus
  agentos run 'src/*.py' -- claude -p 'Review {}'
  agentos run prompts.jsonl -j 8 --keys 'env:OPENAI_API_KEY*' -- llm {prompt}
  agentos run tasks.csv --worker mywork.py:ask
"""


def run(
    context: typer.Context,
    items: Annotated[
        list[str] | None,
        typer.Argument(
            help="Files of items (JSON lines, a JSON array, CSV or text; also .gz), - for standard input, a folder or "
            "a quoted glob. Or no ITEMS, and ::: WORD ... at the end. The command for each item follows --: {} is the "
            "item, {id} its id, {field} one of its fields, {#} its number; without any of them the item is put at its "
            "end. No shell is involved.",
            show_default=False,
            metavar="[ITEMS]... [-- COMMAND {}]",
        ),
    ] = None,
    items_from: Annotated[list[str] | None, typer.Option("--arg-file", "-a", help="The same as ITEMS.")] = None,
    listed: Annotated[
        str | None, typer.Option("--items", help="Items as a list: 'a,b,c' or 'a b c'.", metavar="LIST")
    ] = None,
    worker: Annotated[
        str | None,
        typer.Option(
            help="Instead of a command: a Python function of (item, credential), as package.module:function or "
            "path/to/file.py:function.",
        ),
    ] = None,
    agent: Annotated[
        str | None,
        typer.Option(
            "--agent",
            help="An agent program: claude, codex, gemini, opencode, qwen, aider or goose; each item is a prompt, and "
            "what follows -- are further options of the program. auto: the program of the command after --. Its "
            "outcome is read from its structured output; after a limit its session is resumed. See docs/agents.md.",
            metavar="NAME",
            autocompletion=offer(*AGENT_NAMES),
        ),
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option("--prompt", help="With --agent: a file with the prompt, in which {} is the item.", metavar="FILE"),
    ] = None,
    resumes: Annotated[
        int | None,
        typer.Option("--resumes", help="How often the session of an agent is resumed: 5.", metavar="N", min=1),
    ] = None,
    no_resume: Annotated[
        bool, typer.Option("--no-resume", help="Begin a new session instead of resuming an agent's.")
    ] = False,
    resume_prompt: Annotated[
        str | None,
        typer.Option(help="The prompt for a resumed session: Continue from where you left off.", metavar="TEXT"),
    ] = None,
    clone: Annotated[
        bool,
        typer.Option(
            "--clone",
            help="Give each agent its own clone of the repository that its item names in the field repo, or of the "
            "current one. It is removed after success, unless it has work that its origin does not have.",
        ),
    ] = False,
    keep: Annotated[bool, typer.Option("--keep", help="With --clone: remove no clone.")] = False,
    after: Annotated[
        str | None,
        typer.Option(
            "--after",
            help="A shell script to run after an agent's success, where it worked, such as 'git push origin "
            "HEAD:{id}'; it is retried alone.",
            metavar="SCRIPT",
        ),
    ] = None,
    id: Annotated[  # noqa: A002 - it is the option's name
        str | None, typer.Option(help="The field of an item that is its id. Else its own id, or its words and a hash.")
    ] = None,
    format: Annotated[  # noqa: A002 - it is the option's name
        str | None,
        typer.Option(
            help="How to read ITEMS: jsonl, json (an array), csv, tsv or text. Else by its name.",
            autocompletion=offer(*FORMATS),
        ),
    ] = None,
    repeat: Annotated[
        int | None, typer.Option(help="Run each item N times; ids get #1 to #N.", metavar="N", min=1)
    ] = None,
    allow_duplicates: Annotated[
        bool, typer.Option("--allow-duplicates", help="Accept equal ids; the second gets #2, and so on.")
    ] = False,
    stdin: Annotated[
        bool | None, typer.Option("--stdin/--no-stdin", help="Give each command its item on standard input as well.")
    ] = None,
    parallel: Annotated[
        str | None,
        typer.Option(
            "--parallel",
            "--jobs",
            "-j",
            help="How many items run at once: 3 by default.",
            metavar="N",
        ),
    ] = None,
    max_parallel: Annotated[
        str | None,
        typer.Option(
            help="The most that parallel of a file or the environment may be; alone it sets both.", metavar="N"
        ),
    ] = None,
    retries: Annotated[
        str | None,
        typer.Option(
            help="Retries of an item: 2 for transient errors. Given for a command, any exit code but 0 and a "
            "timeout are retried. Waiting for a limit does not count.",
            metavar="N",
        ),
    ] = None,
    timeout: Annotated[
        str | None, typer.Option(help="End an attempt that takes longer: 90, 90s, 5m, 2h.", metavar="TIME")
    ] = None,
    idle_timeout: Annotated[
        str | None, typer.Option(help="End a command that prints nothing for this long.", metavar="TIME")
    ] = None,
    kill_after: Annotated[
        str | None,
        typer.Option(help="Time from SIGTERM to SIGKILL of a command and its process group: 5s.", metavar="TIME"),
    ] = None,
    grace: Annotated[
        str | None, typer.Option(help="Time that running items have to finish after SIGTERM: 8s.", metavar="TIME")
    ] = None,
    halt: Annotated[
        str | None,
        typer.Option(
            help="Stop early: never, now,fail=1, soon,success=100, soon,fail=10% (of the finished items, from the "
            "100th on; or of all).",
            metavar="WHEN",
        ),
    ] = None,
    max_failures: Annotated[str | None, typer.Option(help="The same as --halt soon,fail=N.", metavar="N")] = None,
    deadline: Annotated[
        str | None, typer.Option(help="Start no item after this: 8h, 07:00 or 2026-11-16T07:00.", metavar="WHEN")
    ] = None,
    no_wait: Annotated[
        bool | None,
        typer.Option("--no-wait", help="End with exit code 75 instead of waiting for limits that last for hours."),
    ] = None,
    keys: Annotated[
        list[str] | None,
        typer.Option(
            help="Credentials: env:NAME, 'env:NAME*', a file (.env, too), names from agentos.toml, or none. Else all "
            "of agentos.toml.",
            metavar="SOURCE",
            autocompletion=complete_keys,
        ),
    ] = None,
    provider: Annotated[
        str | None,
        typer.Option(
            help="Use the keys of this provider only, such as openai. Needed if agentos.toml has keys of several; any: "
            "all of them, for a worker that knows each.",
            metavar="NAME",
        ),
    ] = None,
    slots: Annotated[
        str | None,
        typer.Option(
            help="How many items may use a key at once: a number, or auto to find out. Else what agentos.toml says; "
            "without that auto for functions with keys of a known provider, and 1 for commands.",
            metavar="N|auto",
            autocompletion=offer("auto"),
        ),
    ] = None,
    env_key: Annotated[
        str | None, typer.Option(help="The variable in which the command finds its credential.", metavar="VAR")
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            "--store",
            help="Where the state of the keys is kept: sqlite, sqlite:///path, redis://host:port/db, env:NAME (a "
            "variable that has such a URL, with its password) or memory.",
            autocompletion=offer("sqlite", "memory", "redis://"),
        ),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            help="Run the items on the workers of a Dask scheduler: dask://host:port.",
            metavar="WHERE",
            autocompletion=offer(HERE, "dask://"),
        ),
    ] = None,
    ship_secrets: Annotated[
        bool | None,
        typer.Option(
            "--ship-secrets",
            help="Send keys to the cluster's workers, over the run's own encrypted connection; else each worker "
            "finds its own, by name.",
        ),
    ] = None,
    gateway: Annotated[
        bool | None,
        typer.Option(
            "--gateway/--no-gateway",
            help="Start a local gateway for the run: items get a token instead of a key, and share the keys per "
            "request. The default with --agent. See docs/gateway.md.",
        ),
    ] = None,
    max_wait: Annotated[
        str | None,
        typer.Option(help="The longest wait of one request through the gateway; else it has no end.", metavar="TIME"),
    ] = None,
    park_after: Annotated[
        str | None,
        typer.Option(help="Refuse a request through the gateway whose key opens only after this.", metavar="TIME"),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="Read this file instead of ./agentos.toml.", metavar="FILE")
    ] = None,
    detach: Annotated[
        bool,
        typer.Option(
            "--detach",
            help="Run in the background, and return once the run has begun; closing the terminal does not end it. See "
            "agentos attach.",
        ),
    ] = False,
    name: Annotated[
        str | None,
        typer.Option(
            help="The run's name. By default derived from command and items, so that the same command continues."
        ),
    ] = None,
    dir: Annotated[  # noqa: A002 - it is the option's name
        str | None, typer.Option(help="The folder in which runs are kept: .agentos.", metavar="FOLDER")
    ] = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Run the items that failed last time again.")
    ] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over; the old run is kept under another name.")] = False,
    new_command: Annotated[
        bool,
        typer.Option("--new-command", help="Continue with another command or worker than the run began with."),
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Continue with a damaged journal: items missing in it run again.")
    ] = False,
    trust: Annotated[
        bool,
        typer.Option(
            "--trust",
            help="Continue, this once, in a run folder that is not known to be yours: in a container, or with a "
            "new home folder. See agentos trust.",
        ),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", "-n", help="Show ids, commands, keys and a forecast; run nothing."),
    ] = False,
    tag: Annotated[
        bool | None, typer.Option("--tag/--no-tag", help="Put [id] before each line a command prints.")
    ] = None,
    group: Annotated[
        bool | None, typer.Option("--group", help="Show an item's output in one piece when it has ended.")
    ] = None,
    line_buffer: Annotated[
        bool | None, typer.Option("--line-buffer", help="Show output line by line as it comes; the default.")
    ] = None,
    keep_order: Annotated[
        bool | None, typer.Option("--keep-order", "-k", help="Show output in the order of the items.")
    ] = None,
    quiet: Annotated[
        bool,
        typer.Option(
            "--quiet", "-q", help="Show no output of the items, except the last lines of failures; logs keep all."
        ),
    ] = False,
    results: Annotated[
        str | None, typer.Option(help="Write the results to this file too, one JSON object a line.", metavar="FILE")
    ] = None,
    no_item: Annotated[
        bool | None, typer.Option("--no-item", help="Leave the items themselves out of results.jsonl.")
    ] = None,
    joblog: Annotated[
        str | None, typer.Option(help="Write a table of what ran, as GNU parallel does.", metavar="FILE")
    ] = None,
    report: Annotated[
        str | None,
        typer.Option(
            help="At the end, also after Ctrl-C, write the run as one HTML file. See agentos report.", metavar="FILE"
        ),
    ] = None,
    notify: Annotated[
        list[str] | None,
        typer.Option(
            help="Tell of the run's end, a crash, dead keys and more: slack:env:NAME (or discord, teams, json: a "
            "webhook whose address is in that variable; file:PATH), or a command that gets the facts as JSON on its "
            "standard input. none: nobody, whatever your configuration says.",
            metavar="TARGET",
        ),
    ] = None,
    progress: Annotated[
        str | None,
        typer.Option(
            help="auto (bar on a terminal, plain in a pipe), bar, plain, json or none.",
            metavar="HOW",
            autocompletion=offer(*PROGRESS),
        ),
    ] = None,
    bar: Annotated[bool, typer.Option("--bar", "--eta", help="The same as --progress bar.")] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print only JSON on standard output, one object a line.")
    ] = False,
    color: Annotated[
        str, typer.Option(help="auto, always or never; NO_COLOR and FORCE_COLOR are respected.", metavar="WHEN")
    ] = "auto",
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log more.")] = False,
) -> int:
    """Run a command, or a Python function, for every item; the same command again continues.

    Every item is done once, fails for a reason that is kept, or is still there to be done. Exit codes: 0 all done;
    1 some failed; 2 wrongly typed; 3 halted; 4 no usable credential; 70 a fault, of agentos or of a cluster; 74 output
    cannot be written; 75 parked on a limit; 130 and 143 stopped by a signal.
    """
    from ..session.detached_run import start_detached, take_pipe
    from ..session.request import Flags, build_request
    from ..session.run_session import run_session

    typed: ParsedArguments = context.obj
    begun_pipe = take_pipe(os.environ)
    for one, other, names in (
        (items or None, items_from or None, "ITEMS and --arg-file"),
        (items or items_from or None, listed, "items and --items"),
        (halt, max_failures, "--halt and --max-failures"),
        (progress, bar or None, "--progress and --bar"),
        (detach or None, dry_run or None, "--detach and --dry-run"),
    ):
        if one is not None and other is not None:
            raise UsageError(f"{names} were both given", "give one of them")
    if detach:
        return start_detached(typed, reads_stdin="-" in (items or items_from or ()), as_json=json)
    flags = Flags(
        typed=typed,
        items=tuple(items or items_from or ()),
        listed=listed,
        worker=worker,
        config=config,
        name=name,
        retry_failed=retry_failed,
        fresh=fresh,
        new_command=new_command,
        force=force,
        dry_run=dry_run,
        quiet=quiet,
        json=json,
        color=color,
        verbose=verbose,
        repeat=repeat,
        allow_duplicates=allow_duplicates,
        notify=tuple(notify or ()),
        begun_pipe=begun_pipe,
        options={
            "parallel": parallel,
            "max_parallel": max_parallel,
            "retries": retries,
            "timeout": timeout,
            "idle_timeout": idle_timeout,
            "kill_after": kill_after,
            "grace": grace,
            "halt": halt if max_failures is None else f"soon,fail={max_failures}",
            "deadline": deadline,
            "no_wait": no_wait,
            "keys": keys or None,
            "provider": provider,
            "slots": slots,
            "env_key": env_key,
            "store": store,
            "engine": engine,
            "ship_secrets": ship_secrets,
            "gateway": gateway,
            "max_wait": max_wait,
            "park_after": park_after,
            "id": id,
            "format": format,
            "stdin": stdin,
            "tag": tag,
            "group": group,
            "line_buffer": line_buffer,
            "keep_order": keep_order,
            "results": results,
            "no_item": no_item,
            "joblog": joblog,
            "report": report,
            "progress": "bar" if bar else progress,
            "dir": dir,
        },
        trust=trust,
        agent=AgentFlags(agent, prompt, resumes, no_resume, resume_prompt, clone, keep, after),
    )
    return run_session(build_request(flags))
