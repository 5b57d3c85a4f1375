"""The page /docs: the OpenAPI document for people, with a command to copy for every URL."""

from collections.abc import Iterator, Mapping
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


def docs_page(document: Mapping[str, Any], address: str, needs_token: bool) -> str:
    """Return the page for an OpenAPI document.

    Args:
        document: The document.
        address: The server's URL, with a slash at the end.
        needs_token: Whether commands have to send a token.
    """
    operations = [
        (method.upper(), path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    parts = [
        line
        for number, (method, path, operation) in enumerate(operations)
        for line in _section(
            f"curl-{number}",
            f"{method} {path}",
            operation,
            _command(address + path.removeprefix("/"), operation, needs_token),
        )
    ]
    description = escape(document["info"]["description"])
    return _PAGE.format(address=escape(address), description=description, sections="\n".join(parts))


def _command(url: str, operation: Mapping[str, Any], needs_token: bool) -> str:
    """Return the curl command that sends an example of a request."""
    parameters = operation.get("parameters", [])
    defaults = {
        parameter["name"]: parameter["schema"]["default"]
        for parameter in parameters
        if "default" in parameter["schema"]
    }
    words = ["curl"]
    if needs_token:
        words.append(f'-H "Authorization: Bearer ${TOKEN_VARIABLE}"')
    if "requestBody" in operation:
        words.append("-F images=@image.jpg")
    if "image/png" in operation["responses"]["200"]["content"]:
        words.append("-o answer.png")
    query = f"?{urlencode(defaults)}" if defaults else ""
    return " ".join([*words, f'"{url}{query}"'])


def _section(name: str, title: str, operation: Mapping[str, Any], command: str) -> Iterator[str]:
    """Yield the HTML of an operation: what it does, its command, parameters and responses."""
    yield f'<section aria-labelledby="{name}-title">'
    yield f'<h2 id="{name}-title">{escape(title)}</h2>'
    yield f"<p>{escape(operation['summary'])}</p>"
    yield (
        f'<div class="sample"><pre tabindex="0" aria-labelledby="{name}-title">'
        f'<code id="{name}">{escape(command)}</code></pre>'
        f'<button type="button" data-copies="{name}" aria-describedby="{name}-title">Copy</button>'
        "</div>"
    )
    parameters = {
        parameter["name"]: parameter["description"] for parameter in operation.get("parameters", [])
    }
    if parameters:
        yield f"<p>Parameters:</p>{_list(parameters)}"
    responses = {
        status: response["description"] for status, response in operation["responses"].items()
    }
    yield f"<details><summary>Responses</summary>{_list(responses)}</details></section>"


def _list(descriptions: Mapping[str, str]) -> str:
    rows = (
        f"<li><code>{escape(name)}</code> {escape(text)}</li>"
        for name, text in descriptions.items()
    )
    return f"<ul>{''.join(rows)}</ul>"
