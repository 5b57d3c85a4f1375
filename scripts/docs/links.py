"""Links: those between Markdown files, and those of the finished site."""

import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_FENCED = re.compile(r"(^ *```.*?^ *```[^\n]*$)", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s]+)([^)]*)\)")
_IMPORTED = re.compile(r"url\(\s*[\"']?(?:https?:)?//|@import\s+[\"'](?:https?:)?//")


def map_links(text: str, change: Callable[[str], str]) -> str:
    """Change the targets of a page's links outside its blocks of code."""
    parts = _FENCED.split(text)
    parts[::2] = [_LINK.sub(lambda m: f"]({change(m[1])}{m[2]})", part) for part in parts[::2]]
    return "".join(parts)


def broken_file_links(page: Path) -> list[str]:
    """Return the links of a Markdown file that lead to no file or heading, by GitHub's rules."""
    broken = []

    def check(link: str) -> str:
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not re.match(r"[a-z]+:", link) and (
            not target.exists() or (anchor and anchor not in _headings(target))
        ):
            broken.append(link)
        return link

    map_links(page.read_text(encoding="utf-8"), check)
    return broken


def _headings(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    text = _FENCED.sub("", page.read_text(encoding="utf-8"))
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


class _Page(HTMLParser):
    """The anchors that an HTML page offers, and the targets that it needs."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: set[str] = set()  # of the reader
        self.loads: set[str] = set()  # of the browser
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.add(given["href"])
        elif tag == "link" and given.get("rel") not in ("canonical", "prev", "next"):
            self.loads.add(given.get("href", ""))
        elif "src" in given:
            self.loads.add(given["src"])
        if "mermaid" in given.get("class", "").split():
            self.loads.add("https://unpkg.com/mermaid")  # which the theme would do


def site_faults(site: Path) -> list[str]:
    """Return what is wrong with a site: broken links, and anything loaded from other hosts."""
    pages = {p: _Page(p.read_text(encoding="utf-8")) for p in sorted(site.rglob("*.html"))}
    faults = []
    for path, page in pages.items():
        place = path.relative_to(site)
        for link in sorted(page.links | page.loads):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                if link in page.loads and parts.scheme != "data":
                    faults.append(f"{place} loads {link}")
            elif path.name != "404.html":  # whose links are absolute
                target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
                target = target / "index.html" if target.is_dir() else target
                if not target.exists():
                    faults.append(f"{place} links to {link}, which does not exist")
                elif parts.fragment and unquote(parts.fragment) not in pages[target].ids:
                    faults.append(f"{place} links to {link}, which has no such heading")
    for path in sorted(site.rglob("*.css")):
        if _IMPORTED.search(path.read_text(encoding="utf-8")):
            faults.append(f"{path.relative_to(site)} loads from another host")
    return faults
