"""A notebook as a page, with its stored outputs."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def notebook_page(notebook: Path, folder: Path) -> str:
    """Return the page of a notebook, and write its images to a folder."""
    blocks = []
    for number, cell in enumerate(json.loads(notebook.read_text(encoding="utf-8"))["cells"]):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            blocks.append(source)
        elif source.strip():
            blocks.append(f"```python\n{source}\n```")
            name = f"{notebook.stem}-{number}"
            blocks += [block for out in cell["outputs"] for block in _blocks(out, folder, name)]
    return "\n\n".join(blocks) + "\n"


def _blocks(output: dict[str, Any], folder: Path, name: str) -> Iterator[str]:
    """Yield an output in its richest form."""
    data = output.get("data", {})
    if "image/png" in data:
        folder.mkdir(parents=True, exist_ok=True)
        count = len([*folder.glob(f"{name}-*.png")])
        path = folder / f"{name}-{count}.png"
        path.write_bytes(base64.b64decode("".join(data["image/png"])))
        yield f"![Output of the cell above]({path.name})"
    elif "text/html" in data:  # an empty line would end the HTML
        html = "".join(data["text/html"]).splitlines()
        yield "<div>" + "\n".join(line for line in html if line.strip()) + "</div>"
    else:
        text = "".join(output.get("text", data.get("text/plain", ""))).rstrip()
        yield f"```text\n{text}\n```"
