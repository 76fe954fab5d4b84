"""Work trees: one clone of a repository for each item, kept as long as it has something that its origin does not."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ...errors import CommandFailed
from ..context import build_file_name
from ..inputs.fields import get_field

REPOSITORY_FIELD: Final = "repo"
# For every git that agentos starts: the name of a repository is data, and must not become a command.
GIT_VARIABLES: Final = {"GIT_ALLOW_PROTOCOL": "https:ssh:file", "GIT_TERMINAL_PROMPT": "0"}

# Under a hook of git, its variables name the repository of the hook, and would win over the folder.
_UNSET: Final = "unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE GIT_OBJECT_DIRECTORY GIT_COMMON_DIR GIT_PREFIX"
# Into a folder beside the tree, which is renamed when it is whole; no item's tree has a name that ends like that. A
# clone of a folder gets that repository's origin, and its knowledge of what is there: without that, commits that were
# never pushed would count as pushed.
_CLONE: Final = f"""
set -e
{_UNSET}
find_url() {{
  url=$(git -C "$1" config --get "remote.origin.$2") || return 1
  case $url in
    -*) echo "the origin of $1 begins with a dash: $url" >&2; exit 1 ;;
    /* | *:*) ;;
    *) url=$(cd -- "$1" && cd -- "$url" && pwd) || exit 1 ;;
  esac
}}
part=$2~part
rm -rf -- "$part"
git clone -q -- "$1" "$part"
if [ -d "$1" ] && find_url "$1" url; then
  git -C "$part" remote set-url origin "$url"
  if find_url "$1" pushurl; then git -C "$part" remote set-url --push origin "$url"; fi
  git -C "$part" fetch -q --prune -- "$1" '+refs/remotes/origin/*:refs/remotes/origin/*'
fi
mv -- "$part" "$2"
"""
# The options win over settings that would hide work. A tree whose .git is gone must not be taken for its parent folder.
_IS_CLEAN: Final = f"""
{_UNSET}
cd -- "$1" && export GIT_DIR=.git &&
found=$(git status --porcelain --untracked-files=normal --ignore-submodules=none) && test -z "$found" &&
test -z "$(git stash list)" &&
unpushed=$(git rev-list -n 1 HEAD --branches --not --remotes=origin) && test -z "$unpushed"
"""
_INSIDE: Final = f'{_UNSET}; cd -- "$1" && shift && exec "$@"'


@dataclass(frozen=True, slots=True)
class WorkTrees:
    """The trees of a run, in *folder*. *repository* is cloned for an item that names none; *keep*: none is removed."""

    folder: Path
    repository: str | None
    keep: bool = False

    def path_for(self, item_id: str) -> Path:
        """Return the path of an item's tree."""
        return self.folder / build_file_name(item_id)

    def find_repository(self, item: Any) -> str:
        """Return the repository that the item names, or the default. Raise ``CommandFailed`` if there is none."""
        named: Any = None
        if isinstance(item, dict):
            try:
                named = get_field(item, REPOSITORY_FIELD)
            except KeyError:
                named = None
        repository = named if named is not None else self.repository
        if repository is None:
            raise CommandFailed(reason="--clone: the item names no repo, and this folder is not in a repository")
        if not isinstance(repository, str) or not repository or repository.startswith("-") or "\0" in repository:
            raise CommandFailed(reason=f"--clone: {str(repository)[:100]!r} cannot be the name of a repository")
        return repository

    def set_aside(self, item_id: str) -> Path | None:
        """Rename the tree of an item that begins anew to ``NAME.1``, or the next free number. Return that path."""
        path = self.path_for(item_id)
        if not os.path.lexists(path):
            return None
        number = 1
        while os.path.lexists(aside := path.with_name(f"{path.name}.{number}")):
            number += 1
        path.rename(aside)
        return aside

    def build_clone(self, repository: str, item_id: str) -> tuple[str, ...]:
        """Return the command that makes the item's tree."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return ("sh", "-c", _CLONE, "sh", repository, str(self.path_for(item_id)))

    def build_check(self, item_id: str) -> tuple[str, ...]:
        """Return the command that succeeds if the tree has nothing that its origin does not have."""
        return ("sh", "-c", _IS_CLEAN, "sh", str(self.path_for(item_id)))

    def remove(self, item_id: str) -> None:
        """Remove the item's tree."""
        shutil.rmtree(self.path_for(item_id), ignore_errors=True)


def run_inside(folder: Path, argv: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command that runs *argv* in *folder*, in the same process."""
    return ("sh", "-c", _INSIDE, "sh", str(folder), *argv)
