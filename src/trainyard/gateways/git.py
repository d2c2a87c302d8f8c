"""Facts from git about code: commit, branch, and whether the working tree is dirty.

Git is queried about the repository around a folder. Variables such as GIT_DIR, which a hook of git sets,
would make git answer for another repository, so they are not passed on.
"""

import hashlib
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainyard.gateways.process import run_git

_SECONDS = 20
_CODE = ("src", "scripts", "configs", "native")
_IGNORED_CODE = tuple(
    f"{folder}/*.{ending}" for folder in ("src", "scripts") for ending in ("py", "pth", "so")
)
"""Ignored files that Python can import; git's patterns match in sub-folders too."""
_MODULES = (":(top)*.py", ":(top)*.so")
_OTHER_CODE = tuple(f":(top)*.{ending}" for ending in ("pyx", "sh", "c", "cc", "cpp", "cu", "ipynb"))
"""Untracked code of any repository; its folders are not known."""
_ENVIRONMENTS = frozenset(
    (".venv", "venv", "env", ".tox", ".nox", "site-packages", "node_modules", "__pycache__", "build", "dist")
)
_IGNORED_ANYWHERE = (":(top)*.py", *(f":(top,exclude,glob)**/{name}/**" for name in sorted(_ENVIRONMENTS)))
_STATUS = ("status", "--porcelain", "-z", "--no-renames", "--untracked-files=no")
_DIFFERENCE = (
    *("diff", "--binary", "--full-index", "--no-ext-diff", "--no-textconv", "--no-color", "--no-renames"),
    *("--no-relative", "--unified=3", "--diff-algorithm=myers", "--src-prefix=a/", "--dst-prefix=b/", "HEAD"),
)
"""All options are explicit, so that the user's git configuration cannot change the output.

The full index has a hash of each changed file.
"""


def git_facts(directory: Path) -> dict[str, Any]:
    """The commit, branch, dirty flag and (if dirty) SHA-256 of the difference; empty outside a repository.

    A folder in which the repository around it tracks no file counts as outside. Untracked files make the tree
    dirty if they can change the code that runs; a run's own files do not. If git or a file cannot be read,
    the dirty flag is omitted, because unknown is not clean.
    """
    if not _git(directory, "ls-tree", "-z", "HEAD"):
        return {}
    ignored = _names(directory, "--others", "--exclude-standard", "--ignored", "--", *_IGNORED_CODE)
    return _facts(directory, [_untracked_files(directory, _CODE), ignored], _CODE)


def repository_facts(path: Path, *, with_modules: bool = True) -> dict[str, Any]:
    """The same facts about the repository whose working tree holds a file or folder; empty without one.

    The file itself may be untracked or ignored, as checkpoints are. A link counts as the file that it names.
    Untracked code anywhere in the repository makes it dirty; Python modules only `with_modules`.
    """
    place = Path(os.path.realpath(path))  # resolve() raises for a loop of links
    folder = place if place.is_dir() else place.parent
    root = _root(folder)
    code = (*_MODULES, *_OTHER_CODE) if with_modules else _OTHER_CODE
    return _facts(Path(root), [_untracked_files(Path(root), code)], ()) if root else {}


def untracked_modules(
    directory: Path, modules: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]] | None:
    """Return which files of modules git ignores, and which it neither tracks nor ignores.

    `modules` are digests by path; the names of the answer are relative to the root of the repository around
    `directory`. None if git does not answer.
    """
    root = Path(_root(directory) or directory)
    names = {os.path.relpath(os.path.realpath(path), root): modules[path] for path in sorted(modules)}
    ignored = _names(root, "--others", "--exclude-standard", "--ignored", "--", *_MODULES)
    others = _untracked_files(root, _MODULES)
    if ignored is None or others is None:
        return None
    found = [{name: names[name] for name in names if name in set(listed)} for listed in (ignored, others)]
    return found[0], found[1]


def changed_modules(directory: Path, commit: str, modules: Collection[tuple[str, str]]) -> list[str]:
    """Return the tracked ones of modules, by path and digest, that had other contents than in a commit."""
    root, found = Path(_root(directory) or directory), []
    differing = _git(root, "diff", "--name-only", "--no-renames", "-z", commit)
    for path, digest in sorted(modules):
        name = os.path.relpath(os.path.realpath(path), root)
        if differing is None or name in differing.split("\0") or _content(root / name) != digest:
            then = _git(root, "show", f"{commit}:{name}")
            if then is None or "\ufffd" in then:  # not tracked, or its bytes are no UTF-8
                continue
            contents = then.encode(), then.replace("\n", "\r\n").encode()  # as git checks it out
            found += [name] if digest not in {hashlib.sha256(each).hexdigest() for each in contents} else []
    return list(dict.fromkeys(found))


def untracked_inputs(directory: Path, named: Sequence[Path], *, with_modules: bool = True) -> dict[str, str]:
    """Return the SHA-256 by name of files that git does not track and that a program in `directory` may read.

    These are the files in `named`, and ignored Python code that lies beside tracked files or in a package: an
    untracked file that is not ignored makes the tree dirty. Environments are not searched. Names are relative
    to the root of the repository. Empty if git does not answer. Only those in `named` without `with_modules`.
    """
    root = Path(_root(directory) or directory)
    listed = _git(root, "ls-files", "-z")
    tracked = set((listed or "").split("\0"))
    folders = {".", *(str(Path(name).parent) for name in tracked if name)}
    ignored = _names(root, "--others", "--exclude-standard", "--ignored", "--", *_IGNORED_ANYWHERE) or []
    code = [name for name in ignored if with_modules and _is_importable(root, Path(name), folders)]
    names = [os.path.relpath(os.path.realpath(path), root) for path in named]
    found = {}
    for name in dict.fromkeys((*names, *code)):
        content = None if name in tracked else _content(root / name)
        if content is not None:
            found[name] = content
    return found


def _is_importable(root: Path, name: Path, folders: Collection[str]) -> bool:
    """Return whether a module lies in one of `folders`, or in a package below one."""
    if not _ENVIRONMENTS.isdisjoint(name.parts):
        return False
    for folder in name.parents:
        if str(folder) in folders:
            return True
        if not (root / folder / "__init__.py").is_file():
            return False
    return False


def is_older_than_head(path: Path) -> bool:
    """Return whether a file, or one in a folder, is older than the commit that is checked out around it.

    Then the code of that commit did not write it. Also True if git does not know the commit's time, which
    has a resolution of one second.
    """
    place = Path(os.path.realpath(path))  # resolve() raises for a loop of links
    answer = _git(place if place.is_dir() else place.parent, "show", "-s", "--format=%ct", "HEAD") or ""
    committed = answer.strip()
    files = [each for each in place.rglob("*") if each.is_file()] if place.is_dir() else [place]
    try:
        return not committed.isdecimal() or any(int(each.stat().st_mtime) < int(committed) for each in files)
    except OSError:  # the code that reads the files reports the problem
        return True


def is_cleaned(path: Path) -> bool:
    """Return whether `git clean -ffd`, which a job runs first, would delete files at a path.

    It deletes everything in a working tree that git neither tracks nor ignores. The path need not exist.
    """
    place = Path(os.path.realpath(path))
    folder = next(each for each in (place, *place.parents) if each.is_dir())
    inside = str(place / "run.json")  # a pattern such as `runs/` matches folders only
    # 0: ignored; 1: not ignored; 128: no repository
    return run_git(folder, "check-ignore", "--quiet", "--", inside, seconds=_SECONDS).exit_code == 1


def tags_at_head(directory: Path) -> list[str]:
    """Return the git tags of the commit that is checked out."""
    return (_git(directory, "tag", "--points-at", "HEAD") or "").split()


def origin_address(directory: Path) -> str:
    """The URL of the remote `origin`; empty if there is none. Never show it, because it may hold a login."""
    return (_git(directory, "remote", "get-url", "origin") or "").strip()


def _facts(directory: Path, untracked: Sequence[list[str] | None], code: Sequence[str]) -> dict[str, Any]:
    commit = _git(directory, "rev-parse", "--verify", "HEAD")
    if commit is None:
        return {}
    facts: dict[str, Any] = {"commit": commit.strip()}
    branch = (_git(directory, "rev-parse", "--abbrev-ref", "HEAD") or "").strip()
    if branch and branch != "HEAD":
        facts["branch"] = branch
    return facts | _state_of_tree(directory, untracked, code)


def _state_of_tree(
    directory: Path, untracked: Sequence[list[str] | None], code: Sequence[str]
) -> dict[str, Any]:
    """The dirty flag and the hash of the difference to the commit; empty when any part is not known."""
    names = None if None in untracked else [name for each in untracked for name in each or ()]
    answers = [
        _git(directory, *_STATUS),
        _contents(directory, names),
        _contents(directory, _unwatched(directory, code)),
        _git(directory, *_DIFFERENCE),
    ]
    known = [answer for answer in answers if answer is not None]
    if len(known) < len(answers):
        return {}
    if not any(known):
        return {"dirty": False}
    return {"dirty": True, "diff_sha256": hashlib.sha256("\0\0".join(known).encode()).hexdigest()}


def _untracked_files(directory: Path, code: Sequence[str]) -> list[str] | None:
    return _names(directory, "--others", "--exclude-standard", "--", *code)


def _names(directory: Path, *options: str) -> list[str] | None:
    answer = _git(directory, "ls-files", "-z", *options)
    return None if answer is None else [name for name in answer.split("\0") if name]


def _unwatched(directory: Path, code: Sequence[str]) -> list[str] | None:
    """Return the names of files that git must not compare (assume-unchanged, skip-worktree); None if unknown.

    A sparse checkout marks the files that it omits.
    """
    listed = _git(directory, "ls-files", "-z", "-v", "--", *code)
    if listed is None:
        return None
    tagged = [line.partition(" ") for line in listed.split("\0") if line]
    names = [name for tag, _, name in tagged if tag == "S" or tag.islower()]
    return [name for name in names if (directory / name).is_symlink() or (directory / name).exists()]


def _contents(directory: Path, names: list[str] | None) -> str | None:
    """Return the names with the hashes of the files' contents; None if one cannot be read."""
    if names is None:
        return None
    lines = []
    for name in names:
        content = _content(directory / name)
        if content is None:
            return None
        lines.append(f"{content} {name}\0")
    return "".join(lines)


def _content(path: Path) -> str | None:
    """Return a file's hash, or a broken link's target; None if it cannot be read or is not a file."""
    try:
        if path.is_symlink() and not path.exists():
            return f"-> {path.readlink()}"
        if not path.is_file():
            return None
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def _root(directory: Path) -> str:
    return (_git(directory, "rev-parse", "--show-toplevel") or "").removesuffix("\n")


def _git(directory: Path, *arguments: str) -> str | None:
    done = run_git(directory, *arguments, seconds=_SECONDS)
    return done.stdout if done.ok else None
