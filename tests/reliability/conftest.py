"""The run that every disturbed one must equal."""

import pytest
from trials import train


@pytest.fixture(scope="session")
def undisturbed(shared_bars, tmp_path_factory):
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    ended = train(shared_bars, out)
    assert ended.code == 0, ended.said
    return out
