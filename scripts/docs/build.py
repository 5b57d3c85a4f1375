"""Build the documentation site: `make docs`.

Collects the pages of docs/, the notebooks, the pages generated from code, and some files of the
root in .docs/, from which Zensical builds site/. Exits with 1 if a link is broken.
"""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from commands_page import commands_page, settings_page
from errors_page import errors_page
from links import map_links, site_faults
from notebook_page import notebook_page
from rules_page import rules_page

ROOT = Path(__file__).parents[2]
# Pages generated from code. These are in git, for whoever reads docs/ without building the site.
STORED: dict[str, Callable[[], str]] = {
    "reference/commands.md": commands_page,
    "reference/settings.md": settings_page,
    "reference/lint-rules.md": rules_page,
}
# This one would change with every message in the code.
BUILT: dict[str, Callable[[], str]] = {"reference/errors.md": errors_page}
# Pages of the site that are elsewhere in the repository.
OUTSIDE = {
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "notebook.md": "NOTEBOOK.md",
    "results.md": "benchmarks/RESULTS.md",
}


def nav_pages(config: Path = ROOT / "zensical.toml") -> list[str]:
    """Return the pages of the navigation, in order."""

    def walk(entry: str | list[Any] | dict[str, Any]) -> Iterator[str]:
        if isinstance(entry, str):
            yield entry
        else:
            for inner in entry.values() if isinstance(entry, dict) else entry:
                yield from walk(inner)

    return [*walk(tomllib.loads(config.read_text(encoding="utf-8"))["project"]["nav"])]


def source_of(page: str) -> Path | None:
    """Return the file that a page is made from; None for a page that is only in the site."""
    if page in BUILT:
        return None
    if page in OUTSIDE:
        return ROOT / OUTSIDE[page]
    notebook = (ROOT / "docs" / page).with_suffix(".ipynb")
    return notebook if page.startswith("notebooks/") else ROOT / "docs" / page


def assemble(folder: Path) -> list[str]:
    """Write all pages to a folder and return the missing ones."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "docs", folder, ignore=shutil.ignore_patterns("*.md"))
    pages = nav_pages()
    homes = {source: page for page in pages if (source := source_of(page))}
    missing = []
    for page in pages:
        target, source = folder / page, source_of(page)
        target.parent.mkdir(parents=True, exist_ok=True)
        if source is None:
            text = BUILT[page]()
        elif not source.exists():
            missing.append(page)
            continue
        elif source.suffix == ".ipynb":
            text = relocate(notebook_page(source, target.parent), source, page, homes)
            text += f'\n<a href="{source.name}" download>Download this notebook</a>\n'
        else:
            text = relocate(source.read_text(encoding="utf-8"), source, page, homes)
        target.write_text(text, encoding="utf-8")
    return missing


def relocate(text: str, source: Path, page: str, homes: dict[Path, str]) -> str:
    """Adapt a page's links to its place in the site. Links to other files become their paths."""
    outside: list[str] = []

    def change(link: str) -> str:
        path, mark, anchor = link.partition("#")
        if re.match(r"[a-z]+:|#", link):
            return link
        target = Path(os.path.normpath(source.parent / path))
        if target in homes:
            return os.path.relpath(homes[target], Path(page).parent) + mark + anchor
        if target.exists() and not target.is_relative_to(ROOT / "docs"):
            outside.append(link)
        return link

    text = map_links(text, change)
    for link in outside:
        text = re.sub(rf"\[([^\]]*)\]\({re.escape(link)}\)", r"\1", text)
    return text


def main() -> int:
    """Build and check the site, and return the exit code."""
    for page, generate in STORED.items():
        (ROOT / "docs" / page).write_text(generate(), encoding="utf-8")
    missing = assemble(ROOT / ".docs")
    if missing:
        print(f"error: the navigation names missing pages: {', '.join(missing)}", file=sys.stderr)
        return 1
    build = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    if subprocess.run(build, cwd=ROOT, check=False).returncode:
        return 1
    faults = site_faults(ROOT / "site")
    for fault in faults:
        print(f"error: {fault}", file=sys.stderr)
    if faults:
        return 1
    print(
        f"The documentation is in {ROOT / 'site'}: open site/index.html in a browser. Its search "
        "needs a server: python3 -m http.server --bind 127.0.0.1 --directory site"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
