"""A hook of mkdocs: links that lead outside docs/ become links to the repository on GitHub.

On GitHub `../examples` and `decisions` are folders; the site has no such pages. `SITE_REPOSITORY` is the
address of the repository, which site.yml sets; a build that only checks writes a placeholder.
tests/unit/test_docs.py checks that the files exist.
"""

import os
import re
from pathlib import PurePosixPath
from typing import Any

REPOSITORY = "https://github.com/OWNER/REPOSITORY"
_LINK = re.compile(r"(?P<start>\]\()(?P<target>[^)\s#:]+)(?P<anchor>#[\w-]+)?\)")


def on_page_markdown(markdown: str, *, page: Any, files: Any, **_: Any) -> str:
    """Return the text of a page with its links to files outside the site replaced."""
    folder = PurePosixPath(page.file.src_uri).parent
    pages = {file.src_uri for file in files}
    base = os.environ.get("SITE_REPOSITORY") or REPOSITORY
    return _LINK.sub(lambda link: _resolve(link, folder, pages, base), markdown)


def _resolve(link: re.Match[str], folder: PurePosixPath, pages: set[str], base: str) -> str:
    path = os.path.normpath(f"docs/{folder}/{link['target']}").replace(os.sep, "/")
    if path.removeprefix("docs/") in pages and path.startswith("docs/"):
        return link[0]
    return f"{link['start']}{base}/blob/main/{path}{link['anchor'] or ''})"
