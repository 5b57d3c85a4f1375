"""The lines to change, as source text with the script's own names."""

import textwrap

import pytest

from onsight_explain.delivery.fixed_script import fix_script, fixes_for
from onsight_explain.script.trace import LoaderFacts, OptimizerFacts, Reads, Trace
from onsight_explain.tracing.sites import Site
from onsight_explain.what_ifs.what_if import make_what_ifs

SCRIPT = """
import torch
loader = DataLoader(
    train_set, 4,
    shuffle=True, num_workers=2,
)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
for step, (x, y) in enumerate(loader):
    out = net(x)
    loss = criterion(out, y)
    loss.backward()
    optimizer.step()
    for guess in out:
        right += guess.argmax().item()
"""


@pytest.fixture
def lines(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(SCRIPT), encoding="utf-8")

    def at(line):
        return Site(file=str(path), line=line)

    loader = LoaderFacts(
        site=at(3),
        batch_size=4,
        workers=2,
        is_pinned=False,
        is_persistent=False,
        is_shuffled=True,
        items=100,
    )
    trace = Trace(
        ended="window",
        startup_seconds=1.0,
        loader=loader,
        optimizer=OptimizerFacts(name="Adam", site=at(7), is_fused=False),
        forward_site=at(9),
        reads=[Reads(sites=[at(14)], per_step=4)],
        graphs_site=at(9),
    )

    def lines(**changes):
        return fix_script(path, fixes_for(make_what_ifs(changes), trace)).lines

    return lines


@pytest.mark.parametrize(
    ("changes", "line", "text"),
    [
        (
            {"workers": 0, "batch_factor": 16},
            3,
            "DataLoader(train_set, 64, shuffle=True, num_workers=0)",
        ),
        ({"fused": True}, 7, "torch.optim.Adam(net.parameters(), lr=1e-3, fused=True)"),
        (
            {"bf16": True},
            9,
            "with torch.autocast(x.device.type, dtype=torch.bfloat16):  # around lines 9 to 10",
        ),
    ],
)
def test_a_change_becomes_a_line_of_the_script(lines, changes, line, text):
    (found,) = lines(**changes)
    assert (found.site.line, found.text) == (line, text)


def test_a_statement_that_reads_is_given_with_its_lines_and_what_it_sums_up(lines):
    (found,) = lines(rare_reads=(14,))
    assert found.site.line == 14
    assert found.text == "if step % 50 == 0:  # around lines 13 to 14; right: of these steps only"


def test_several_changes_give_several_lines_in_the_scripts_own_names(lines):
    found = lines(threads=1, channels_last=True, short_spin=True)
    assert [one.text for one in found] == [
        "torch.set_num_threads(1)  # at the start",
        "start it with GOMP_SPINCOUNT=2000 set",
        "net.to(memory_format=torch.channels_last)  # once, before the training",
        "x = x.to(memory_format=torch.channels_last)",
    ]
    assert found[0].site is None
