"""Commands that outlive their killed run: their key is not used by others before they have ended."""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import subprocess
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from agentos import Command, Credential, CredentialCoordinator, NoCredentialAvailable, ParallelCoordinator
from agentos.runs.commands.helper_client import HelperClient
from agentos.runs.commands.helper_process import signal_group
from agentos.stores.sqlite.lease_locks import LeaseLocks

from ...process_state import state_of
from .drivers import PATIENCE, Driver, shared, until
from .suspended_child import KEY

# Does not end when it is asked to.
STUBBORN = """
trap '' TERM
echo $$ >> "$1.pids"
while [ ! -e "$1.go" ]; do echo "$1" >> ticks; sleep 0.02; done
"""
# Cannot be found by its environment, but has what it inherited open.
NAMELESS = 'echo $$ >> "$1.pids"; exec env -i PATH="$PATH" sh -c "while :; do sleep 0.02; done"'


def pool_at(tmp_path: Path) -> CredentialCoordinator:
    told = shared(tmp_path)
    return CredentialCoordinator([KEY], store=told["store"], lease_ttl=told["ttl"])


# -- real processes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("helper", ["helper killed, too", "helper alive"])
@pytest.mark.parametrize("store", ["store in use", "store opened anew"])
def test_a_key_is_free_only_when_the_commands_of_a_killed_run_have_ended(
    start: Callable[..., Driver], tmp_path: Path, helper: str, store: str
) -> None:
    killed = start("killed", script=STUBBORN, **shared(tmp_path))
    command = killed.wait_for_command()
    pool = pool_at(tmp_path) if store == "store in use" else None
    if helper == "helper alive":
        killed.signal(signal.SIGKILL)
        killed.process.wait()
    else:
        killed.kill_with_helper()
    assert state_of(command) not in "XZ"

    with pool or pool_at(tmp_path) as pool, pool.lease(timeout=PATIENCE):
        assert state_of(command) in "XZ"


def test_a_command_that_cannot_be_found_is_waited_for(start: Callable[..., Driver], tmp_path: Path) -> None:
    killed = start("killed", script=NAMELESS, **shared(tmp_path))
    command = killed.wait_for_command()
    until(
        lambda: b"AGENTOS_MARK" not in Path(f"/proc/{command}/environ").read_bytes(), "it has cleared its environment"
    )
    killed.kill_with_helper()

    with pool_at(tmp_path) as pool:
        with pytest.raises(NoCredentialAvailable):
            pool.acquire(timeout=1.0)
        (state,) = pool.snapshot()
        assert "a command that it started still runs" in str(state)
        signal_group(command, signal.SIGKILL)
        with pool.lease(timeout=PATIENCE):
            assert state_of(command) in "XZ"


def test_a_command_inherits_the_lock_of_its_own_lease_and_nothing_is_left_of_it(tmp_path: Path) -> None:
    credentials = [Credential(f"sk-number-{number}-of-three") for number in range(3)]
    pool = CredentialCoordinator(credentials, store=tmp_path / "pool.sqlite")
    script = (
        'for each in /proc/$$/fd/*; do readlink "$each"; done; stat -c %a "$1".locks/*; touch "$0"; '
        'while [ "$(ls begun-* | wc -l)" -lt 3 ]; do sleep 0.01; done'
    )
    command = Command(["sh", "-c", f"cd {tmp_path}; {script}", "begun-{}", str(tmp_path / "pool.sqlite")])

    _, results = ParallelCoordinator(3, pool).execute_parallel(["a", "b", "c"], command, str)
    pool.close()

    open_files = [[line for line in result.value["stdout"].split() if ".locks/" in line] for result in results]
    assert [len(each) for each in open_files] == [1, 1, 1]
    assert len({each[0] for each in open_files}) == 3
    modes = {line for result in results for line in result.value["stdout"].split() if line.isdigit()}
    assert modes == {"600"}
    assert list((tmp_path / "pool.sqlite.locks").iterdir()) == []
    assert stat.S_IMODE((tmp_path / "pool.sqlite.locks").stat().st_mode) == 0o700


def test_the_lock_of_an_attempt_ends_with_it_though_a_daemon_has_inherited_it(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    lock = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    spawner = HelperClient({"PATH": os.environ["PATH"]}, "mark.", tmp_path / "scratch")
    # It ends once its daemon has written down its own process id, and which of its files is the lock.
    daemon = "echo $$ $(readlink /proc/$$/fd/* | grep -c /lock$) > it; mv it daemon; exec sleep 600"
    script = f"cd {tmp_path}; setsid sh -c '{daemon}' & while [ ! -e daemon ]; do sleep 0.01; done"
    child = spawner.spawn(["sh", "-c", script], {}, None, lock)
    os.close(lock)

    told = b""
    while data := os.read(child.status, 4096):
        told += data
    pid, inherited = (tmp_path / "daemon").read_text().split()
    again = os.open(file, os.O_RDWR)
    try:
        fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises if anybody has it locked
        assert (inherited, told.splitlines()[-1]) == ("1", b"X 0")
        assert state_of(int(pid)) not in "XZ"
    finally:
        os.close(again)
        child.close()
        spawner.close()
    until(lambda: state_of(int(pid)) in "XZ", "the daemon ends with the helper")


# -- the files alone ------------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "pool.sqlite"


MARK = f"{'c' * 16}.1"


def end_process_of(locks: LeaseLocks) -> None:
    """What the end of its process does."""
    assert locks._process is not None
    os.close(locks._process[1])
    locks._process = None


def files_of(store: Path) -> list[str]:
    return sorted(path.name for path in store.with_name("pool.sqlite.locks").iterdir())


def gone_with_a_command(store: Path) -> subprocess.Popen[bytes]:
    """A process that has inherited the lock of lease 7, of a process that is gone."""
    locks = LeaseLocks(store)
    lock = locks.hold(7, MARK)
    command = subprocess.Popen(["sleep", "600"], pass_fds=[lock])
    os.close(lock)
    end_process_of(locks)
    return command


def test_a_lease_is_outlived_until_the_last_process_that_has_its_lock_ends(store: Path) -> None:
    command = gone_with_a_command(store)
    try:
        assert LeaseLocks(store).outlived([6, 7])
        assert not LeaseLocks(store).outlived([6])
    finally:
        command.kill()
        command.wait()

    assert not LeaseLocks(store).outlived([7])


def test_a_lease_whose_process_is_alive_is_not_outlived_by_its_command(store: Path) -> None:
    locks = LeaseLocks(store)
    lock = locks.hold(7, MARK)

    assert not LeaseLocks(store).outlived([7])
    LeaseLocks(store).forget([7])  # it is silent, not gone: it may take its key again, and its file stays
    locks.move(7, 8)

    assert files_of(store)[0] == "8"
    os.close(lock)
    locks.drop(8)
    locks.close()
    assert files_of(store) == []


def test_a_lease_that_was_taken_again_is_outlived_by_its_command(store: Path) -> None:
    locks = LeaseLocks(store)
    lock = locks.hold(7, MARK)
    locks.move(7, 8)
    end_process_of(locks)

    assert LeaseLocks(store).outlived([8])
    os.close(lock)
    assert not LeaseLocks(store).outlived([8])


def test_a_forked_child_does_not_show_its_parent_as_alive(store: Path) -> None:
    locks = LeaseLocks(store)
    lock = locks.hold(7, MARK)
    (lives, says), (waits, go) = os.pipe(), os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork with threads: this child does nothing with them
        child = os.fork()
    if not child:
        os.close(go)
        os.write(says, b"!")
        os.read(waits, 1)  # until its parent has looked
        os._exit(0)
    try:
        os.read(lives, 1)
        end_process_of(locks)
        assert LeaseLocks(store).outlived([7])
    finally:
        for each in (lock, lives, says, waits, go):
            os.close(each)
        os.waitpid(child, 0)


def test_a_process_that_has_the_store_for_itself_removes_what_nobody_has_locked(store: Path) -> None:
    command = gone_with_a_command(store)
    (store.with_name("pool.sqlite.locks") / "5").touch()

    CredentialCoordinator(["sk-any-key-will-do"], store=store).close()
    held = files_of(store)
    command.kill()
    command.wait()
    CredentialCoordinator(["sk-any-key-will-do"], store=store).close()

    assert held == ["7"]
    assert files_of(store) == []


def test_a_link_in_the_place_of_a_lock_file_is_not_followed(store: Path, tmp_path: Path) -> None:
    locks = LeaseLocks(store)
    os.close(locks.hold(7, MARK))
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (store.with_name("pool.sqlite.locks") / "8").symlink_to(victim)

    os.close(locks.hold(8, MARK))

    assert victim.read_text() == "mine"
    locks.close()
