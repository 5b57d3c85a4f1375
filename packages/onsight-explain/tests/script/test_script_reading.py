"""What the linter raises is an error of this package when a script is explained."""

import pytest

from onsight_explain.errors import ExplainError
from onsight_explain.script.reading import find_mistakes


def test_a_script_that_is_not_python_is_bad_data(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("for x in loader\n    pass\n")
    with pytest.raises(ExplainError, match=r"train\.py, line 1"):
        find_mistakes(script)
