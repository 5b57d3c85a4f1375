"""Lines that fixes made too long are laid out anew; all others stay as they were."""

import ast

import pytest

LOADER = "loader = DataLoader(training_images_of_pets, batch_size=4, shuffle=True, drop_last=False)"


def code(found):
    return found.after.decode()


def same_tree(found, source, changed):
    """Whether the fixed text means the source with one part changed."""
    return ast.dump(ast.parse(code(found))) == ast.dump(ast.parse(source.replace(*changed)))


def test_a_call_that_became_too_long_gets_its_arguments_in_a_line_of_their_own(script, traced):
    source = f"from torch.utils.data import DataLoader\n{LOADER}\n"
    written = script(source)
    found = written.fix(traced(written.call("DataLoader"), workers=0), workers=2)
    assert code(found).splitlines()[2:] == [
        "loader = DataLoader(",
        "    training_images_of_pets, batch_size=4, shuffle=True, drop_last=False, num_workers=2",
        ")",
    ]
    assert same_tree(found, source, ("False)", "False, num_workers=2)"))
    (line,) = found.lines
    assert "\n" not in line.text  # told as one


@pytest.mark.parametrize("unit", ["  ", "\t"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_many_arguments_get_a_line_each_in_the_scripts_own_indentation(
    script, traced, unit, newline
):
    loader = (
        "DataLoader(a, sampler=make_a_sampler_of_classes(a, [1, 2]), drop_last=a.is_long_enough)"
    )
    source = f"def f():\n{unit}return {loader}\n".replace("\n", newline)
    written = script(source.encode())
    trace = traced(written.call("DataLoader"), workers=1, batch_size=4)
    found = written.fix(trace, workers=2, batch_factor=2, persistent_workers=True)
    assert code(found).split(newline)[2:] == [
        f"{unit}return DataLoader(",
        *(
            f"{unit}{unit}{one},"
            for one in (
                "a",
                "sampler=make_a_sampler_of_classes(a, [1, 2])",
                "drop_last=a.is_long_enough",
                "num_workers=2",
                "persistent_workers=True",
                "batch_size=8",
            )
        ),
        f"{unit})",
        "",
    ]


def test_a_line_that_was_long_before_stays(script, traced):
    long = f"names = call({', '.join(['argument'] * 15)})"
    source = f"import torch\n{long}\nloader = DataLoader(a, 4)\n"
    written = script(source)
    found = written.fix(traced(written.call("DataLoader")), workers=1)
    assert code(found) == source.replace("a, 4", "a, 4, num_workers=1").replace(
        "import torch", "# Fixed by Onsight from train.py.\nimport torch"
    )


def test_what_is_left_to_do_is_a_comment_of_short_lines(script, traced):
    written = script("def f():\n    if True:\n        out = network(images)\n")
    found = written.fix(traced(forward=written.call("network")), graphed=True)
    lines = code(found).splitlines()
    assert lines[3].startswith(
        "        # To do: once, before the training: torch.cuda.make_graphed"
    )
    assert lines[4].startswith("        # ")
    assert max(map(len, lines)) <= 100
    assert [line.left for line in found.lines] == ["it cannot be changed automatically"]
    assert not found.is_changed
