"""README and docs/understand/inside.md show the calls that a run really makes, in their order."""

import inspect
import re
from pathlib import Path

import pytest

from onsight.training import run

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("page", ["README.md", "docs/understand/inside.md"])
def test_the_main_path_has_the_calls_of_train_in_their_order(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    (shown,) = re.findall(r"```py\n(request = .*?)```", text, re.DOTALL)
    calls = re.findall(r"\w+\([^()]*\)", re.sub(r"#.*", "", shown))
    calls = ["".join(call.split()).removesuffix("...)") for call in calls]
    train, members = inspect.getsource(run.train), inspect.getsource(run._train_model)
    members = members.partition(":\n")[2].replace("module", "request.module")
    code = "".join(train.replace("_train_model(", members).split())
    places = [code.find(call) for call in calls]
    assert len(calls) >= 8
    assert -1 not in places, dict(zip(calls, places, strict=True))
    assert places == sorted(places)
