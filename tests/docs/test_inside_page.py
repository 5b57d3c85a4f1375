"""docs/understand/inside.md shows the functions that a run really calls, in their order."""

import inspect
import re
from pathlib import Path

from onsight.training import run

PAGE = Path(__file__).parents[2] / "docs" / "understand" / "inside.md"


def test_the_main_path_has_the_functions_that_train_calls_in_their_order():
    text = PAGE.read_text(encoding="utf-8")
    (shown,) = re.findall(r"```py\n(request = .*?)```", text, re.DOTALL)
    shown = re.sub(r"#.*", "", shown)
    stages = [stage for stage in re.findall(r"(\w+)\(", shown) if stage != "append"]
    train, members = inspect.getsource(run.train), inspect.getsource(run._train_model)
    code = train.replace("_train_model(", members)
    places = [code.find(f"{stage}(") for stage in stages]
    assert len(stages) >= 8
    assert -1 not in places, dict(zip(stages, places, strict=True))
    assert places == sorted(places)
