"""A fixed script is run beside the original, and written only if it trains as that does."""

from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest
from rich.console import Console

from onsight_explain.delivery.delivery import check_target, deliver
from onsight_explain.diagnosis import explain
from onsight_explain.diagnosis.show import describe_delivery, print_delivery
from onsight_explain.errors import ExplainError
from onsight_explain.paired_timing import RatioInterval
from onsight_explain.search import Search, SearchResult, TrialFailed, TrialResult
from onsight_explain.what_ifs.what_if import make_what_ifs

SCRIPT = "import torch\nloader = DataLoader(data, 4)\n"


@dataclass
class Seen:
    losses: list = field(default_factory=lambda: [2.3, 2.2, 2.1])
    startup_seconds: float = 1.0


class FakeTrial:
    """Rates as given; the text that the fixed script has while it is measured."""

    def __init__(self, rate, losses=(2.3, 2.2, 2.1)):
        self.rate, self.first, self.text = rate, Seen(list(losses)), ""

    def measure(self, seconds):
        if isinstance(self.rate, str):
            raise TrialFailed(self.rate)
        return self.rate

    def close(self):
        pass


class FakeBench:
    """Opens one trial, and keeps what it was asked for."""

    losses, startup_seconds = (2.3, 2.2, 2.1), 1.0

    def __init__(self, trial):
        self.trial = trial

    def first_limit(self, seconds):
        return 120.0

    def open(self, changes):
        self.asked = changes
        with open(changes[0].value, "rb") as file:
            self.text = file.read()
        return self.trial


@pytest.fixture
def deliver_as(script, traced, tmp_path):
    """A function that fixes a script and proves it by the given trials."""

    def make(trial, changes=None, plain=100.0, min_gain=1.1):
        written = script(SCRIPT)
        bench, target = FakeBench(trial), tmp_path / "mended.py"
        what_ifs = make_what_ifs(changes or {"workers": 1})
        trace = traced(loader=written.call("DataLoader"))
        found = deliver(
            written.path, trace, what_ifs, target, bench, FakeTrial(plain), 1.0, min_gain
        )
        return found, bench

    return make


def test_the_file_that_ran_is_the_one_that_is_written(deliver_as, capsys):
    found, bench = deliver_as(FakeTrial(500.0))
    assert found.is_sound
    assert found.target.read_bytes() == bench.text
    assert b"DataLoader(data, 4, num_workers=1)" in bench.text
    facts = found.facts()
    assert facts["ratio"]["low"] == pytest.approx(5.0)
    assert (facts["losses"], facts["file"]) == ("same", str(found.target))
    print_delivery(found, Console(width=200))
    said = capsys.readouterr().out
    assert "-loader = DataLoader(data, 4)\n+loader = DataLoader(data, 4, num_workers=1)" in said
    assert "100 images/s and mended.py 500: at least 5.0 times as fast" in said


@pytest.mark.parametrize(("rate", "min_gain"), [(107.0, 1.1), (140.0, 1.5)])
def test_small_gains_and_those_within_noise_are_not_headlined(deliver_as, rate, min_gain):
    found, _ = deliver_as(FakeTrial(rate), min_gain=min_gain)
    assert "no gain was shown" in describe_delivery(found)
    assert found.target.exists()


def test_a_change_whose_gain_was_not_shown_is_not_written(
    script, traced, tmp_path, monkeypatch, capsys
):
    written, target = script(SCRIPT), tmp_path / "mended.py"
    changes, interval = tuple(make_what_ifs({"workers": 1})), RatioInterval(0.87, 1.44, 2.38, 3)
    best = TrialResult(changes, 144.0, interval)
    trace = replace(traced(loader=written.call("DataLoader")), images=40)
    bench = SimpleNamespace(
        watch=lambda *_: (trace, None), candidates=lambda _: changes, open=lambda _: None
    )
    processes = SimpleNamespace(unchanged_files=list)
    monkeypatch.setattr(explain, "Processes", lambda *_: nullcontext(processes))
    monkeypatch.setattr(explain, "ScriptBench", lambda _: bench)
    monkeypatch.setattr(Search, "run", lambda *_: SearchResult([best], best, [100.0], []))
    assert explain.explain_script(written.path, [], write=target).delivery is None
    assert not target.exists()
    assert "mended.py was not written: no change was shown to help" in capsys.readouterr().err


def test_a_longer_set_up_is_named_with_the_training_that_makes_up_for_it(deliver_as):
    """Twice as fast saves half of the time: 20 s of set-up, of 1 s before, need 38 s."""
    slow = FakeTrial(200.0)
    slow.first.startup_seconds = 20.0
    found, _ = deliver_as(slow)
    assert found.facts()["setup_seconds"] == (1.0, 20.0)
    told = "set-up takes 20 s instead of 1 s, which pays off if train.py trains for more than 38 s"
    assert told in describe_delivery(found)
    assert "set-up" not in describe_delivery(deliver_as(FakeTrial(200.0))[0])


def test_larger_batches_come_with_what_else_to_change(deliver_as):
    found, _ = deliver_as(FakeTrial(500.0), {"batch_factor": 16})
    top = found.target.read_text().partition("import")[0]
    assert "raise the learning rate" in " ".join(top.split("\n# "))
    assert "accuracy, which was not measured" in " ".join(top.split("\n# "))


@pytest.mark.parametrize(
    ("trial", "words"),
    [
        (FakeTrial("NameError: name 'x' is not defined"), "the fixed script failed: NameError"),
        (FakeTrial(500.0, losses=(9.0, 9.0, 9.0)), "the losses of the first steps differ"),
        (FakeTrial(500.0, losses=(2.3, float("nan"), 2.1)), "first steps differ"),
        (FakeTrial(60.0), "no gain was shown (0.60 to 0.60 times as fast"),
    ],
)
def test_a_wrong_or_slower_one_is_not_kept_but_shown_in_full(deliver_as, capsys, trial, words):
    found, _ = deliver_as(trial, {"cache": "items"})
    print_delivery(found, Console(width=200))
    said = capsys.readouterr().out
    assert "more line" not in said
    assert "+class CachedItems:" in said or "+class CachedBatches:" in said
    assert not found.is_sound
    assert not found.target.exists()
    assert words in describe_delivery(found)
    assert "was not written" in describe_delivery(found)
    assert found.facts()["file"] is None


def test_losses_of_other_batches_are_compared_by_their_mean(deliver_as):
    found, _ = deliver_as(FakeTrial(500.0, losses=(2.1, 2.3, 2.2)), {"batch_factor": 16})
    assert found.proof.losses == "alike"
    found, _ = deliver_as(FakeTrial(500.0, losses=(1.0, 1.0, 1.0)), {"batch_factor": 16})
    assert found.proof.losses == "not comparable"


def test_what_must_be_done_at_the_start_runs_with_it_and_is_said(deliver_as, capsys):
    found, bench = deliver_as(FakeTrial(200.0), {"short_spin": True})
    assert bench.asked[1].environment == {"GOMP_SPINCOUNT": "2000"}
    print_delivery(found, Console(width=200))
    assert "Start it with GOMP_SPINCOUNT=2000 set." in capsys.readouterr().out
    assert b"# start it with GOMP_SPINCOUNT=2000 set" in found.target.read_bytes()


def test_comments_alone_are_not_run(script, traced, tmp_path):
    written = script("import torch\nloader = make(data, 4)\n")
    trace, target = traced(loader=written.call("make")), tmp_path / "mended.py"
    trace.loader = replace(trace.loader, site=None)
    changes = make_what_ifs({"workers": 1})
    found = deliver(written.path, trace, changes, target, None, None, 1.0)
    assert found.proof is None
    assert "its comments list what to change" in describe_delivery(found)
    assert "# To do: DataLoader(..., num_workers=1)" in target.read_text()


def test_changes_of_an_imported_module_are_left_as_comments_with_its_line(script, traced, tmp_path):
    other = script("x = 1\nloader = DataLoader(data, 4)\n", "images.py")
    written = script("import torch\nimport images\n")
    changes = make_what_ifs({"workers": 1})
    found = written.fix(traced(loader=other.call("DataLoader")), workers=changes[0].value)
    (line,) = found.lines
    assert (str(line.site), line.left) == ("images.py:2", "it is in images.py")
    expected = "# images.py:2: DataLoader(data, 4, num_workers=1)"
    assert expected in found.after.decode().splitlines()
    assert other.path.read_text() == "x = 1\nloader = DataLoader(data, 4)\n"


def test_no_file_of_the_users_is_replaced(tmp_path):
    script, other = tmp_path / "train.py", tmp_path / "other.py"
    script.write_text(SCRIPT)
    other.write_text(SCRIPT)
    with pytest.raises(ExplainError, match="--write would replace"):
        check_target(script, tmp_path / "." / "train.py")
    with pytest.raises(ExplainError, match="was not written by Onsight: delete it"):
        check_target(script, other)
    other.write_text("# Fixed by Onsight from train.py.\n")
    assert check_target(script, other) == other
    with pytest.raises(ExplainError, match="is a folder"):
        check_target(script, tmp_path)
