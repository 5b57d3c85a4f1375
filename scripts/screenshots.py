"""Make docs/images from real runs on the demo images (make screenshots; needs Chromium, Linux).

python scripts/screenshots.py [NAME ...] [--work FOLDER]   (names: train report serve explain check)

Runs are kept in FOLDER (by default a temporary one), so that one screenshot can be made again.
`explain` measures speed: run nothing else at the same time.
"""

import argparse
import fcntl
import io
import os
import pty
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import resources
from itertools import count
from pathlib import Path
from typing import Any
from urllib.request import urlopen
from zipfile import ZipFile

from PIL import Image
from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
COLUMNS = 100
WIDTH, MARGIN = 1100, 16  # pixels of pages
MAX_BYTES = 200_000
COLORS = 128  # of a PNG's palette
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
TRAINING = ("train", "clothes", "--budget", "2m")
RUN = "runs/clothes"
PER_CLASS = 300  # training images
DISTINCT = ("ankle boot", "bag", "dress", "sandal", "sneaker", "trouser")
NEW = ("bag", "sneaker", "dress", "shirt")  # classes of the images dropped on the served page

# What rich's SVG would load from another host is left out.
SVG_FORMAT = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{
  font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace;
  font-size: {char_height}px;
  line-height: {line_height}px;
}}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def main() -> None:
    """Make the named screenshots, or all."""
    makers: dict[str, Callable[[Path], None]] = {
        "train": make_train,
        "report": make_report,
        "serve": make_serve,
        "explain": make_explain,
        "check": make_check,
    }
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--work", type=Path)
    arguments = parser.parse_args()
    if unknown := sorted({*arguments.names} - {*makers}):
        parser.error(f"unknown: {', '.join(unknown)}; names are {', '.join(makers)}")
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        work = arguments.work or Path(temporary)
        write_images(work)
        for name in arguments.names or makers:
            makers[name](work)


# --- The screenshots ---


def make_train(work: Path) -> None:
    """Make the screenshot of a run's console."""
    shutil.rmtree(work / RUN, ignore_errors=True)
    save_console("train", ["onsight", *TRAINING], work, lacks_time)


def make_report(work: Path) -> None:
    """Make the screenshots of a report: the result with the classes, and the worst mistakes."""
    with open_page((finished_run(work) / "report.html").as_uri(), WIDTH, 900) as page:
        page.add_style_tag(content="#use { display: none }")  # the commands before the classes
        worst = page.locator("#classes tbody tr").nth(4)
        save_png("report", page.screenshot(full_page=True, clip=until(worst, below=0)))
        first_row = page.locator("#mistakes .gallery > li").first
        heading = page.locator("#mistakes h3").first
        part = page.screenshot(full_page=True, clip=until(first_row, heading))
        save_png("report-mistakes", part)


def make_serve(work: Path) -> None:
    """Make the screenshot of the server's page, with some images."""
    finished_run(work)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [find("onsight"), "serve", RUN, "--port", str(port)]
    server = subprocess.Popen(command, cwd=work, stderr=subprocess.DEVNULL)
    try:
        address = f"http://127.0.0.1:{port}/"
        wait_for(f"{address}ready")
        with open_page(address, WIDTH, 900) as page:
            page.set_input_files("#files", [work / "new" / f"{name}.png" for name in NEW])
            page.wait_for_function(
                f"document.querySelectorAll('#list .chart').length == {len(NEW)}"
            )
            page.wait_for_timeout(1500)
            save_png("serve", page.screenshot(full_page=True))
    finally:
        server.terminate()
        server.wait()


def make_explain(work: Path) -> None:
    """Make the screenshot of `explain` on a console, for a script with a slow loader."""
    shutil.copy(ROOT / "examples" / "slow_loader.py", work / "slow_loader.py")
    save_console(
        "explain", ["onsight", "explain", "slow_loader.py", "--", "clothes"], work, is_noisy
    )


def make_check(work: Path) -> None:
    """Make the screenshot of a check's page, for a dataset with planted mistakes."""
    subprocess.run([find("onsight"), "check", "faulty"], cwd=work, check=True)
    with open_page((work / "checks" / "faulty" / "check.html").as_uri(), WIDTH, 900) as page:
        label = page.locator("#label .cards > li").first
        save_png("check", page.screenshot(full_page=True, clip=until(label)))


# --- The images that everything starts from ---


def write_images(work: Path) -> None:
    """Write a part of the demo as the folders clothes, new and faulty, which has planted faults."""
    if (work / "clothes").exists():
        return
    archive = resources.files("onsight") / "demo" / "fashion-mnist-sample.zip"
    with archive.open("rb") as file, ZipFile(file) as demo:
        by_class: dict[tuple[str, str], list[str]] = {}
        for member in demo.namelist():
            split, name, _ = member.split("/")
            by_class.setdefault((split, name), []).append(member)
        for (split, name), members in by_class.items():
            number = count()
            for member in members[:PER_CLASS] if split == "train" else members[:1]:
                path = (
                    work / "clothes" / name / f"{next(number):03d}.png"
                    if split == "train"
                    else work / "new" / f"{name}.png"
                )
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(demo.read(member))
    for name in DISTINCT:
        (work / "faulty" / name).mkdir(parents=True)
        for path in sorted((work / "clothes" / name).iterdir())[:60]:
            shutil.copy(path, work / "faulty" / name / path.name)
    plant_faults(work / "faulty")


def plant_faults(folder: Path) -> None:
    """Plant copies (one with another label), wrong labels and unusable files."""
    shutil.copy(folder / "ankle boot" / "003.png", folder / "sneaker" / "new-003.png")
    shutil.copy(folder / "sneaker" / "005.png", folder / "sneaker" / "005 (1).png")
    with Image.open(folder / "sandal" / "002.png") as image:
        image.resize((56, 56)).save(folder / "sandal" / "002-large.jpg", quality=90)
    shutil.move(folder / "trouser" / "006.png", folder / "bag" / "trouser-006.png")
    shutil.move(folder / "bag" / "007.png", folder / "trouser" / "bag-007.png")
    (folder / "dress" / "empty.png").write_bytes(b"")
    (folder / "dress" / "cut.png").write_bytes((folder / "dress" / "001.png").read_bytes()[:200])


def finished_run(work: Path) -> Path:
    """Return the run folder; train first if it does not exist."""
    if not (work / RUN / "report.html").exists():
        subprocess.run([find("onsight"), *TRAINING], cwd=work, check=True)
    return work / RUN


# --- Consoles ---


def save_console(
    name: str, command: list[str], work: Path, is_spoiled: Callable[[str], bool]
) -> None:
    """Run a command in its own terminal and save the final screen.

    is_spoiled: Returns whether the output shows that other work disturbed the command.
    """
    raw = run_in_terminal([find(command[0]), *command[1:]], work)
    if is_spoiled(" ".join(re.sub(r"\x1b\[[\d;]*m", "", raw).split())):
        sys.exit(f"error: not saved, as this machine is not idle:\n{final_screen(raw)}")
    console = Console(
        record=True,
        width=COLUMNS,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
    )
    console.print(Text.assemble(("$ ", "bold green"), (" ".join(command), "bold")))
    console.print(Text.from_ansi(final_screen(raw)))
    path = IMAGES / f"{name}.svg"
    svg = console.export_svg(title="", code_format=SVG_FORMAT, unique_id=name)
    path.write_text("\n".join(map(str.rstrip, svg.splitlines())) + "\n", encoding="utf-8")
    report_size(path)


def lacks_time(text: str) -> bool:
    """Return whether a run had too little time for something."""
    return "there was no time" in text


def is_noisy(text: str) -> bool:
    """Return whether the speed of the unchanged script varied, or the verdict says so."""
    rates = re.search(r"which ran at ([\d,]+) to ([\d,]+) images/s", text)
    if "machine is busy" in text or "too noisy to tell" in text.lower() or rates is None:
        return True
    slowest, fastest = (int(rate.replace(",", "")) for rate in rates.groups())
    return fastest > 1.5 * slowest


def run_in_terminal(command: list[str], folder: Path) -> str:
    """Run a command with a terminal as its input and output; return its output."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    chunks = []
    while True:
        try:
            chunk = os.read(ours, 65536)
        except OSError:  # Linux: the other end is closed
            break
        if not chunk:
            break
        chunks.append(chunk)
    os.close(ours)
    text = b"".join(chunks).decode(errors="replace")
    if process.wait():
        sys.exit(f"error: {' '.join(command)} ended with {process.returncode}:\n{text}")
    return text


def final_screen(raw: str) -> str:
    """Return the lines on the screen at the end, without overwritten progress."""
    lines: list[str] = []
    for line in raw.replace("\r\n", "\n").split("\n"):
        start, erased, _ = line.partition("\x1b[2K")
        for _ in range(start.count("\x1b[1A") if erased else 0):
            if lines:
                lines.pop()
        lines.append(line.split("\x1b[2K")[-1].split("\r")[-1])
    text = re.sub(r"\x1b\[(\?25[lh]|\d*[AKJ])", "", "\n".join(lines))
    return text.strip("\n")


def find(command: str) -> str:
    """Return the path of a command in this environment."""
    return (
        shutil.which(command, path=f"{Path(sys.executable).parent}:{os.environ['PATH']}") or command
    )


# --- Pages ---


@contextmanager
def open_page(address: str, width: int, height: int) -> Iterator[Any]:
    """Open a page in Chromium, at twice the resolution of an ordinary screen."""
    from playwright.sync_api import sync_playwright

    chromium = next(filter(None, map(shutil.which, BROWSERS)), None)
    if chromium is None:
        sys.exit(f"error: needs Chromium: none of {', '.join(BROWSERS)} is on the path")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(
            viewport={"width": width, "height": height}, device_scale_factor=1.5
        )
        page.goto(address)
        yield page
        browser.close()


def until(last: Any, first: Any = None, below: int = MARGIN) -> dict[str, float]:
    """Return the part of a page from one element (or the top) to the end of another."""
    end = last.bounding_box()
    top = first.bounding_box()["y"] - MARGIN if first else 0
    return {"x": 0, "y": top, "width": WIDTH, "height": end["y"] + end["height"] + below - top}


def wait_for(address: str) -> None:
    """Wait until a server responds."""
    for _ in range(120):
        try:
            with urlopen(address):
                return
        except OSError:
            time.sleep(0.5)
    sys.exit(f"error: nothing responds at {address}")


def save_png(name: str, content: bytes) -> None:
    """Save a screenshot with a palette, which makes the file several times smaller."""
    path = IMAGES / f"{name}.png"
    with Image.open(io.BytesIO(content)) as image:
        reduced = image.convert("RGB").quantize(
            COLORS, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE
        )
    reduced.save(path, optimize=True)
    report_size(path)


def report_size(path: Path) -> None:
    """Print a file and its size; end with an error if it is too large for the repository."""
    size = path.stat().st_size
    print(f"{path.relative_to(ROOT)}: {size / 1000:.0f} kB")
    if size > MAX_BYTES:
        sys.exit(f"error: {path} is larger than {MAX_BYTES:,} bytes")


if __name__ == "__main__":
    main()
