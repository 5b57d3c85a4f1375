"""From the command line to the JSON, on real images; accelerators are planted."""

import io
import json
import types

import pytest
import torch
from rich.console import Console

from onsight.cli import main
from onsight.config import make_config
from onsight.errors import DeviceError
from onsight.explainer import compare_devices as comparing
from onsight.explainer import rounds
from onsight.explainer.compare_devices import compare_devices
from onsight.explainer.show_devices import comparison_facts, print_comparison
from onsight.report.console import Reporter, SilentReporter
from onsight_explain import paired_timing


@pytest.fixture
def hasty(monkeypatch):
    """Measure only for a moment."""
    monkeypatch.setattr(rounds, "ROUNDS", 3)
    monkeypatch.setattr(rounds, "_WARM_UP_SECONDS", 1e-4)
    monkeypatch.setattr(rounds, "_WINDOW_SECONDS", 1e-4)


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    properties = types.SimpleNamespace(name="Test GPU", total_memory=80 * 2**30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)


@pytest.fixture
def plant(monkeypatch):
    """A function that plants the costs of candidates: (fixed, image, largest batch)."""

    def plant(costs):
        class PlantedTrial:
            def __init__(self, candidate, *_):
                self.candidate = candidate

            def timer(self, batch_size):
                def seconds(steps):
                    fixed, image, largest = costs[self.candidate.name]
                    if batch_size > largest:
                        raise torch.OutOfMemoryError("out of memory")
                    return steps * (fixed + image * batch_size)

                return seconds

        monkeypatch.setattr(comparing, "_make_trial", PlantedTrial)

    return plant


def run_command(capsys, *words):
    with pytest.raises(SystemExit) as stop:
        main([str(word) for word in words])
    captured = capsys.readouterr()
    return stop.value.code, captured.out, captured.err


def printed(comparison, width=80):
    text = io.StringIO()
    print_comparison(comparison, Console(file=text, width=width, highlight=False, markup=False))
    return text.getvalue()


def test_the_json_of_a_real_comparison(capsys, bars, hasty):
    former = torch.get_num_threads()
    words = ("--batch-sizes", "16,4", "--threads", "2", "--seed", "3", "--json")
    code, out, err = run_command(capsys, "explain", bars, *words)
    assert code == 0, err
    found = json.loads(out.splitlines()[-1])
    assert found["verdict"].startswith("Fastest at batch 4")
    assert found["model"] == "sprint"
    assert found["device"] == "cpu"
    assert found["shape"] == [12, 12, 1]
    candidates = ["1 thread fp32", "2 threads fp32", "1 thread bf16", "2 threads bf16"]
    assert [(row["batch_size"], row["candidate"]) for row in found["rows"]] == [
        (size, name) for size in (4, 16) for name in candidates
    ]
    assert list(found["fits"]) == candidates
    assert found["best_ratio"] == max(row["ratio"] for row in found["rows"])
    for row in found["rows"]:
        assert row["images_per_second"] == pytest.approx(row["batch_size"] / row["step_seconds"])
        assert row["spread"][0] <= row["step_seconds"] <= row["spread"][1]
        assert len(row["rounds"]) == 3
        assert f"{row['threads']} thread" in row["candidate"]
        assert row["precision"] in row["candidate"]
        if row["candidate"] == "1 thread fp32":
            assert row["ratio"] == 1
    assert torch.get_num_threads() == former


def test_the_printed_table_and_sentences(capsys, bars, hasty):
    code, out, err = run_command(capsys, "explain", bars, "--batch-sizes", "8", "--threads", "1")
    assert code == 0, err
    assert "images/s of training sprint on 12x12x1 images" in out
    assert "Fastest at batch 2" in out
    assert "batch 2 is timed too" in err
    assert "timing sprint at batch 2, 8" in err
    assert all(len(line) <= 80 for line in out.splitlines())


def test_the_verdict_names_the_planted_costs(bars, gpu, plant):
    plant({"cpu": (0.12e-3, 14e-6, 512), "cuda:0": (0.61e-3, 1.2e-6, 512)})
    comparison = compare_devices(str(bars), make_config({}), (), (4, 64), SilentReporter())
    found = comparison_facts(comparison)
    assert "at batch 4: cpu (3.5x over cuda:0, by a lower fixed cost per step)" in found["verdict"]
    assert "at batch 64: cuda:0 (1.48x over cpu, by less time per image)" in found["verdict"]
    assert (found["device"], found["best_ratio"]) == ("cuda:0", pytest.approx(1.48, abs=0.01))
    fit = found["fits"]["cuda:0"]
    assert fit["fixed_seconds"] == pytest.approx(0.61e-3)
    assert fit["image_seconds"] == pytest.approx(1.2e-6)
    assert [one["batch_size"] for one in found["crossovers"]] == [39]
    assert [row["precision"] for row in found["rows"][:2]] == ["fp32", "bf16"]
    text = printed(comparison)
    assert "cuda:0 overtakes cpu at about batch 39" in text
    for words in ("0.61 ms", "0.12 ms", "14.0 µs", "1.20 µs", "1.48x"):
        assert words in text


def test_out_of_memory_is_shown_in_its_cell(bars, gpu, plant):
    plant({"cpu": (1e-3, 1e-5, 512), "cuda:0": (1e-3, 1e-6, 32)})
    comparison = compare_devices(str(bars), make_config({}), (), (4, 32, 64), SilentReporter())
    found = comparison_facts(comparison)
    assert [row["problem"] for row in found["rows"]] == [None] * 5 + ["out of memory"]
    assert found["rows"][-1]["images_per_second"] is None
    assert found["rows"][-1]["ratio"] is None
    assert found["fits"]["cuda:0"]["image_seconds"] == pytest.approx(1e-6)
    text = printed(comparison)
    assert "out of memory" in text
    assert "only cpu was timed" in text
    json.dumps(found)


def test_no_memory_even_for_the_network_gives_advice(bars, gpu, plant, monkeypatch):
    def fail(*_):
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(comparing, "_make_trial", fail)
    with pytest.raises(DeviceError, match="remove it from --compare"):
        compare_devices(str(bars), make_config({}), (), (4,), SilentReporter())


def test_a_failing_network_is_an_error(bars, monkeypatch):
    def fail(*_):
        raise RuntimeError("shapes cannot be multiplied")

    monkeypatch.setattr(comparing, "_make_trial", fail)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        compare_devices(str(bars), make_config({}), ["cpu"], (4,), SilentReporter())


def test_bf16_is_skipped_if_it_does_not_work(bars, capsys, monkeypatch, plant):
    costs = {
        f"{words} {precision}": (1e-3, 1e-6, 512)
        for words in ("1 thread", "2 threads")
        for precision in ("fp32", "bf16")
    }
    plant(costs)
    working = comparing._make_trial.timer

    def timer(trial, batch_size):
        def fail(steps):
            raise RuntimeError("not implemented for 'BFloat16'")

        return fail if trial.candidate.precision == "bf16" else working(trial, batch_size)

    monkeypatch.setattr(comparing._make_trial, "timer", timer)
    comparison = compare_devices(str(bars), make_config({"threads": 2}), (), (4, 8), Reporter())
    assert [one.name for one in comparison.candidates] == ["1 thread fp32", "2 threads fp32"]
    assert "1 thread bf16 is skipped" in capsys.readouterr().err
    with pytest.raises(RuntimeError, match="BFloat16"):  # if it is asked for, it is an error
        compare_devices(str(bars), make_config({"precision": "bf16"}), (), (4, 8), SilentReporter())


@pytest.mark.parametrize("is_busy", [False, True])
def test_a_busy_machine_gives_a_warning(bars, plant, capsys, monkeypatch, is_busy):
    plant({"1 thread": (1e-3, 1e-6, 512)})
    monkeypatch.setattr(paired_timing, "is_busy", lambda: is_busy)
    config = make_config({"precision": "fp32", "threads": 1})
    compare_devices(str(bars), config, ["cpu"], (4, 8), Reporter())
    assert ("busy with other work" in capsys.readouterr().err) == is_busy


@pytest.mark.parametrize("gpus", [1, 4, 8])
def test_any_number_of_devices_fits_80_columns(planted, gpus):
    costs = {"cpu": (0.12e-3, 14e-6)} | {f"cuda:{n}": (0.61e-3, 1.2e-6) for n in range(gpus)}
    text = printed(planted(costs, (4, 32, 128, 1024)))
    assert all(len(line) <= 80 for line in text.splitlines())
    assert all(f" {name}" in text for name in costs)
    assert text.count("\n         batch") == -(-gpus // 3)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--compare", "cpu,cuda:7"], "no device 'cuda:7'; available: cpu"),
        (["--compare", "cpu,cpu"], "--compare names cpu twice"),
        (["--compare", "cpu,"], "no device ''"),
        (["--batch-sizes", "4,many"], "give whole numbers separated by commas"),
        (["--batch-sizes", "0"], "0 is not a batch size"),
        (["--batch-sizes", "4,500"], "500 is more than the"),
        (["--model", "compcat"], "Did you mean compact"),
        (["--recipe", "fastest"], "no recipe 'fastest'"),
        (["--precision", "fp16"], "needs a GPU"),
    ],
)
def test_wrong_arguments_are_explained(capsys, bars, monkeypatch, words, expected):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    code, out, err = run_command(capsys, "explain", bars, *words)
    assert (code, out) == (2, "")
    assert expected in err.partition("error: ")[2]
    assert "Traceback" not in err
