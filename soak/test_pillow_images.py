"""Pillow's test images, many of them deliberately broken: each is used or refused with a reason."""

import subprocess
import sys
import tarfile
from collections import Counter
from pathlib import Path

import pytest

from onsight.data.decode import decode
from onsight.data.sources.folder import read_unlabelled
from onsight.errors import ImageError

VERSION = "12.3.0"
FILES, USED = 1056, 670


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder Tests/images of the source distribution, from the package index."""
    folder = tmp_path_factory.mktemp("pillow")
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    wanted = ["--no-binary", ":all:", "--dest", str(folder), f"pillow=={VERSION}"]
    subprocess.run([*pip, *wanted], check=True)
    (package,) = folder.glob("*.tar.gz")
    with tarfile.open(package) as tar:
        tar.extractall(folder, filter="data")
    (found,) = folder.glob("*/Tests/images")
    return found


def test_every_file_is_used_or_refused_with_a_reason(images: Path) -> None:
    source = read_unlabelled(images)
    outcome: Counter[str] = Counter()
    for row in range(len(source.index)):
        try:
            data = source.read(row)
            assert isinstance(data, bytes)
            assert decode(data).ndim == 3
            outcome["used"] += 1
        except ImageError as error:
            outcome[str(error).split(":")[0]] += 1
    print(outcome)
    assert len(source.index) + len(source.problems) == FILES
    assert outcome["used"] == USED
