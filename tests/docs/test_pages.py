"""Every page does what it shows; its commands have only options that exist."""

import re
import subprocess
import typing
from pathlib import Path

import pytest
from blocks import Block, Mismatch, PageRun, matches, read_blocks
from build import BUILT, OUTSIDE, nav_pages, relocate, source_of
from command_lines import faulty_commands
from links import site_faults

from onsight.evaluation.results import Results

ROOT = Path(__file__).parents[2]
NAV = [source for page in nav_pages() if (source := source_of(page)) and page not in OUTSIDE]
PAGES = [ROOT / "README.md", *(path for path in NAV if path.suffix == ".md" and path.exists())]
COMMAND_PAGES = [*PAGES, ROOT / "CONTRIBUTING.md", *ROOT.glob("packages/*/README.md")]


def name(path):
    return str(path.relative_to(ROOT))


def is_run(page):
    return any(block.is_run for block in read_blocks(page.read_text(encoding="utf-8")))


@pytest.mark.docs
@pytest.mark.timeout(240)
@pytest.mark.parametrize("page", [path for path in PAGES if is_run(path)], ids=name)
def test_blocks(page, page_folder, page_environment):
    blocks = read_blocks(page.read_text(encoding="utf-8"))
    fault = None
    try:
        PageRun(name(page), page_folder, page_environment).run(blocks)
    except Mismatch as error:
        fault = f"{name(page)}, {error}"
    if fault:  # outside the exception, whose traceback would say nothing more
        pytest.fail(fault, pytrace=False)


@pytest.mark.parametrize("page", COMMAND_PAGES, ids=name)
def test_options_exist(page):
    text = page.read_text(encoding="utf-8")
    assert faulty_commands(text, read_blocks(text)) == []


@pytest.mark.docs
@pytest.mark.parametrize("page", BUILT)
def test_options_of_generated_pages_exist(page):
    text = BUILT[page]()
    assert faulty_commands(text, read_blocks(text)) == []


@pytest.mark.docs
@pytest.mark.timeout(240)
@pytest.mark.filterwarnings("default")  # of the Jupyter libraries
@pytest.mark.parametrize("notebook", sorted(ROOT.glob("docs/notebooks/*.ipynb")), ids=name)
def test_notebook_runs(notebook, page_folder, page_environment, monkeypatch):
    import nbformat
    from nbclient import NotebookClient

    for key, value in page_environment.items():
        monkeypatch.setenv(key, value)
    resources = {"metadata": {"path": str(page_folder)}}
    content = nbformat.read(notebook, as_version=4)
    NotebookClient(content, timeout=60, kernel_name="python3", resources=resources).execute()


def test_every_page_is_in_the_navigation():
    known = {source_of(page) for page in nav_pages()}
    found = {*ROOT.glob("docs/**/*.md"), *ROOT.glob("docs/**/*.ipynb")}
    assert {name(path) for path in found - known} == set()


def test_the_page_of_files_has_every_key_of_results():
    text = (ROOT / "docs" / "reference" / "files.md").read_text(encoding="utf-8")
    section = text.partition("## results.json")[2].partition("\n## ")[0]
    section = re.sub(r"`(\w+)` \(`_low`, `_high`\)", r"`\1` `\1_low` `\1_high`", section)
    keys = typing.get_type_hints(Results).keys()
    assert {key for key in keys if f"`{key}`" not in section} == set()


# --- Planted faults: each must be found ---


def test_console_output_may_differ_in_digits_only():
    shown = "accuracy 61.00% (n = 600)\n...\nreport: a.html\n"
    assert matches(shown, "accuracy 7.5% (n = 1,600)\nreport: a.html", ignores_digits=True)
    assert matches(shown, "accuracy 7% (n = 1)\nx\ny\nreport: a.html\n", ignores_digits=True)
    assert not matches(shown, "accuracy 7% (m = 1)\nreport: a.html", ignores_digits=True)
    assert not matches("a\n", "a\nb\n", ignores_digits=True)
    assert matches("0.5 ... s\n", "0.5 12 s\n", ignores_digits=False)
    assert not matches("0.5\n", "0.6\n", ignores_digits=False)
    assert matches("...b\n...c...", "a\nb\nx\nc\nd", ignores_digits=True)
    assert not matches("...b\n...\ne", "a\nb\nx\n", ignores_digits=True)


PAGE = """
# Title

```console
$ echo one; echo \\
> two 3
one
two 4
$ exit 2  # exit 2
$ echo no; exit 3
# exit 3
no
```

```python
x = 1
print(x, flush=True)
```

```text
1
```

=== "Tab"

    ```python title="say.py"
    print("said")
    ```

    ```console
    $ python say.py
    said
    ```

```sh
onsight train clothes --cluster auto
```
"""


def run(page, folder, environment):
    PageRun("page.md", folder, environment).run(read_blocks(page))


def test_a_page_that_is_right(tmp_path, page_environment):
    run(PAGE, tmp_path, page_environment)
    assert faulty_commands(PAGE, read_blocks(PAGE)) == []


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("two 4", "too 4", "line 5: .*printed something else.*too 4.*two 3"),
        ("exit 2  # exit 2", "exit 2", "line 9: `exit 2` exited with 2, not 0"),
        ("exit 2  # exit 2", "true  # exit 2", "exited with 0, not 2"),
        ("# exit 3", "# exit 4", "exited with 3, not 4"),
        ("# exit 3\nno", "# exit 3\nyes", "printed something else"),
        ("```text\n1", "```text\n2", "line 20: the Python block printed something else"),
        ("print(x, flush=True)", "print(y)", 'line 15: .*page.md", line 17, .*NameError'),
        ("$ python say.py", "python say.py", "output before the first"),
    ],
)
def test_a_wrong_block_is_found(tmp_path, page_environment, right, wrong, said):
    assert right in PAGE
    with pytest.raises(Mismatch, match=f"(?s){said}"):
        run(PAGE.replace(right, wrong), tmp_path, page_environment)


def test_what_a_block_leaves_running_is_ended(tmp_path, page_environment):
    page = "```console\n$ sleep 100 & echo $!\n0\n```\n"
    blocks = read_blocks(page.replace("echo $!", "echo $! | tee pid"))
    PageRun("page.md", tmp_path, page_environment).run(blocks)
    state = subprocess.run(
        ["ps", "-o", "stat=", (tmp_path / "pid").read_text()], capture_output=True
    )
    assert state.stdout.strip() in (b"", b"Z")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("onsight train clothes --lr 3", "onsight train has no option --lr"),
        (
            "CUDA_VISIBLE_DEVICES=0 onsight predict a b --cvs x | head",
            "predict has no option --cvs",
        ),
        ("srun onsight trian clothes", "there is no command onsight trian"),
        ("onsight explain train.py --epochs 3", "onsight-explain has no option --epochs"),
        ("onsight-lint x.py --exclude a", "onsight-lint has no option --exclude"),
    ],
)
def test_an_unknown_option_is_found(line, said):
    (fault,) = faulty_commands("", [Block("sh", "", line + "\n", 1)])
    assert said in fault
    (fault,) = faulty_commands(f"Run `{line}` to see.", []) or [fault]
    assert said in fault


def test_known_options_are_accepted():
    lines = "onsight explain train.py -- --epochs 3\nonsight sweep x --try a=1 --budget=5m # --no\n"
    lines += (
        "onsight train x --no-flip; onsight lint --fix .\ntorchrun -m onsight train x --ranks 2\n"
    )
    assert faulty_commands("", [Block("sh", "", lines, 1)]) == []


def test_a_broken_link_of_the_site_is_found(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "index.html").write_text('<h1 id="top">A</h1><a href="../">home</a>')
    links = '<a href="a/#top">fine</a><a href="a/#gone">x</a><a href="b/">y</a>'
    loads = '<script src="https://example.org/x.js"></script><img src="gone.png">'
    loads += '<pre class="mermaid">a</pre>'
    (tmp_path / "index.html").write_text(links + loads + '<a href="https://example.org">z</a>')
    (tmp_path / "x.css").write_text('@import "https://example.org/y.css";')
    assert site_faults(tmp_path) == [
        "index.html links to a/#gone, which has no such heading",
        "index.html links to b/, which does not exist",
        "index.html links to gone.png, which does not exist",
        "index.html loads https://example.org/x.js",
        "index.html loads https://unpkg.com/mermaid",
        "x.css loads from another host",
    ]


def test_a_link_out_of_the_pages_is_relocated(tmp_path):
    source = ROOT / "docs" / "guides" / "data.md"
    homes = {ROOT / "CONTRIBUTING.md": "contributing.md", ROOT / "docs" / "start.md": "start.md"}
    text = "[a](../../CONTRIBUTING.md#x) [b](../start.md) [`Makefile`](../../Makefile) [c](#here)"
    done = relocate(text, source, "guides/data.md", homes)
    assert done == "[a](../contributing.md#x) [b](../start.md) `Makefile` [c](#here)"
