"""The undisturbed run that all others must equal, and the number of its instants."""

import functools

import pytest
from instants import number_instants
from trials import train


@pytest.fixture(scope="session")
def undisturbed(shared_bars, build_once):
    def run(folder):
        ended = train(shared_bars, folder / "run")
        assert ended.code == 0, ended.output

    return build_once("undisturbed", run) / "run"


@pytest.fixture(scope="session")
def instants(shared_bars, build_once):
    """The number of instants (in a run, inside its saves)."""

    def count_instants(folder):
        prepare = functools.partial(number_instants, folder / "counts")
        assert train(shared_bars, folder / "run", prepare=prepare).code == 0

    counts = build_once("instants", count_instants) / "counts"
    return [int(word) for word in counts.read_text().split()]
