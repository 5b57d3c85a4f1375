"""The page /docs: the OpenAPI document for people, with a command to copy for every URL."""

from collections.abc import Mapping
from html import escape
from typing import Any
from urllib.parse import urlencode

from onsight.serve.access import TOKEN_VARIABLE

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<link rel="stylesheet" href="static/style.css">
<title>API · Onsight</title>
</head>
<body data-address="{address}">
<header><div class="top"><h1>API <span class="quiet">· Onsight</span></h1></div></header>
<main class="api">
<p>{description} For programs: <a href="openapi.json">openapi.json</a>.</p>
{sections}
<p id="announcement" class="unseen" role="status"></p>
</main>
<script type="module" src="static/docs.js"></script>
</body>
</html>
"""
_SECTION = """<section aria-labelledby="title-{number}">
<h2 id="title-{number}">{title}</h2>
<p>{summary}</p>
<div class="sample">
<pre tabindex="0" aria-labelledby="title-{number}"><code id="curl-{number}">{command}</code></pre>
<button type="button" data-copies="curl-{number}" aria-describedby="title-{number}">Copy</button>
</div>
{parameters}
<details><summary>Responses</summary>{responses}</details>
</section>"""


def docs_page(document: Mapping[str, Any], address: str, needs_token: bool) -> str:
    """Return the page for an OpenAPI document. address: the server's URL, ending in a slash."""
    operations = [
        (path.removeprefix("/"), method, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    sections = (
        _SECTION.format(
            number=number,
            title=f"{method.upper()} /{path}",
            summary=escape(operation["summary"]),
            command=escape(_command(f"{address}{path}", operation, needs_token)),
            parameters=_list({row["name"]: row for row in operation.get("parameters", [])}),
            responses=_list(operation["responses"]),
        )
        for number, (path, method, operation) in enumerate(operations)
    )
    description = escape(document["info"]["description"])
    return _PAGE.format(
        address=escape(address), description=description, sections="\n".join(sections)
    )


def _command(url: str, operation: Mapping[str, Any], needs_token: bool) -> str:
    """Return the curl command that sends an example of a request."""
    schemas = {row["name"]: row["schema"] for row in operation.get("parameters", [])}
    query = {name: schema["default"] for name, schema in schemas.items() if "default" in schema}
    words = ["curl"]
    if needs_token:
        words.append(f'-H "Authorization: Bearer ${TOKEN_VARIABLE}"')
    if "requestBody" in operation:
        words.append("-F images=@image.jpg")
    if "image/png" in operation["responses"]["200"]["content"]:
        words.append("-o answer.png")
    return " ".join([*words, f'"{url}?{urlencode(query)}"' if query else f'"{url}"'])


def _list(parts: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a list of the descriptions of named parts."""
    rows = (
        f"<li><code>{escape(name)}</code> {escape(part['description'])}</li>"
        for name, part in parts.items()
    )
    return f"<ul>{''.join(rows)}</ul>" if parts else ""
