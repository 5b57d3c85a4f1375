"""Oracles: sums in float64, and every candidate of a run judged again from its files."""

import signal
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import onsight
from onsight.data.index import VALIDATION
from onsight.data.loader import Loader
from onsight.deadline import Deadline
from onsight.errors import Interrupted
from onsight.evaluation.predictions import evaluate_batches
from onsight.models.classifier import Classifier
from onsight.models.file import load_model_file
from onsight.ranks import world
from onsight.ranks.signals import request_stop
from onsight.report.console import SilentReporter
from onsight.tensorfile import read_tensors
from onsight.training import fit as fitting
from onsight.training import members as running
from onsight.training import trainer
from onsight.training.checkpoint import save_weights
from onsight.training.decisions import read_decisions
from onsight.training.interpolation import FRACTIONS, interpolate, load_interpolated
from onsight.training.verify_resume import compare_folders
from onsight.tune.fit_epochs import Estimates

QUICK = {"model": "test_resnet", "image_size": 16, "threads": 1, "reporter": SilentReporter()}


def make_net(seed):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 2))
    net(torch.randn(8, 3, 4, 4))
    return net


def test_interpolated_weights_are_the_weighted_mean_of_all_weights():
    start, end = make_net(0).state_dict(), make_net(1).state_dict()
    end["1.num_batches_tracked"] += 5
    for share in (0.0, *FRACTIONS, 1.0):
        found = interpolate(start, end, share)
        for name in ("0.weight", "1.running_var", "3.bias"):
            mean = (1 - share) * start[name].double() + share * end[name].double()
            torch.testing.assert_close(found[name].double(), mean, rtol=0, atol=1e-7)
        assert found["1.num_batches_tracked"] == 6


def test_the_ends_of_the_line_are_exact():
    start, end = make_net(0).state_dict(), make_net(1).state_dict()
    for share, exact in ((0.0, start), (1.0, end)):
        found = interpolate(start, end, share)
        assert all(torch.equal(found[n], exact[n]) for n in exact if "num" not in n)


def test_a_network_gets_its_own_weights_back(tmp_path):
    save_weights(tmp_path / "start.safetensors", make_net(0))
    net = make_net(1)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    seen = []
    for share in load_interpolated(net, tmp_path / "start.safetensors", FRACTIONS):
        seen.append(share)
        assert not torch.equal(net[0].weight, before["0.weight"])
    assert tuple(seen) == FRACTIONS
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())


def judged_again(net, data, tensors):
    """Validation accuracy and loss of weights, for the images of a run."""
    net.load_state_dict(tensors)
    ids, device = data.dataset.ids(VALIDATION), torch.device("cpu")
    batches = Loader(data.images, ids, 16, device).in_order()
    found = evaluate_batches(Classifier(net, data.normalization, "fp32", device), batches)
    return float((found.labels == found.predicted).mean()), -float(found.losses.mean())


def test_a_run_keeps_the_candidate_that_validates_best(bars, tmp_path, monkeypatch, backbone):
    planned, real = [], running.fit

    def fit(one, *rest):
        planned.append(one)
        return real(one, *rest)

    monkeypatch.setattr(running, "fit", fit)
    kept = set()
    for rate in (1e-4, 3e-3):
        run = onsight.train(
            bars,
            out=tmp_path / str(rate),
            weights=str(backbone.model),
            learning_rate=rate,
            epochs=1,
            batch_size=16,
            crop_area=1.0,
            **QUICK,
        )
        start, last, best = (
            read_tensors(run.path / "checkpoints" / f"{name}.safetensors")[0]
            for name in ("start", "last", "best")
        )
        end = {name: last[f"average.{name}"] for name in start}
        net = planned[-1].data.new_network(planned[-1].config)
        candidates = {share: interpolate(start, end, share) for share in (0.0, *FRACTIONS, 1.0)}
        judged = {
            share: judged_again(net, planned[-1].data, one) for share, one in candidates.items()
        }
        winner = max(judged, key=lambda share: judged[share])
        for name in end:
            torch.testing.assert_close(best[name], candidates[winner][name], rtol=0, atol=0)
        blended = run.results["best_blend"] if run.results["best_epoch"] else 0.0
        assert blended == winner
        kept.add(winner)
    assert len(kept) > 1  # a test of one case would not tell


class StopAtSecondStep:
    """A stop request made after two steps."""

    signal_number = signal.SIGTERM

    def __init__(self):
        self.steps = 0

    def __bool__(self):
        self.steps += 1
        return self.steps == 2


def judge_in_order(patch, losses):
    """Evaluation during training that finds all right, with these losses in turn."""
    real, left = trainer.evaluate_batches, iter(losses)

    def evaluate(*args):
        found = real(*args)
        return replace(found, predicted=found.labels, losses=np.full_like(found.losses, next(left)))

    patch.setattr(trainer, "evaluate_batches", evaluate)


@pytest.mark.parametrize(
    "best", [pytest.param(0, marks=pytest.mark.soak), 1, pytest.param(2, marks=pytest.mark.soak)]
)
def test_interpolated_weights_that_validate_best_are_the_model_even_after_a_stop(
    bars, tmp_path, monkeypatch, backbone, best
):
    fields = {"weights": str(backbone.model), "epochs": 1, "learning_rate": 1e-3, **QUICK}
    losses = [-1, -2, -2, -2]  # of the epoch, then of the interpolations; no head does better
    losses[1 + best] = -3
    with monkeypatch.context() as patch:
        judge_in_order(patch, losses)
        whole = onsight.train(bars, out=tmp_path / "whole", **fields)
    with monkeypatch.context() as patch:
        patch.setattr(world, "StopRequest", StopAtSecondStep)
        with pytest.raises(Interrupted):
            onsight.train(bars, out=tmp_path / "stopped", **fields)
    with monkeypatch.context() as patch:
        judge_in_order(patch, losses)
        onsight.train(bars, out=tmp_path / "stopped", resume=True, reporter=SilentReporter())
    assert (whole.results["best_epoch"], whole.results["best_blend"]) == (1, FRACTIONS[best])
    checkpoints = whole.path / "checkpoints"
    start, _ = read_tensors(checkpoints / "start.safetensors")
    last, _ = read_tensors(checkpoints / "last.safetensors")
    end = {name: last[f"average.{name}"] for name in start}
    expected = interpolate(start, end, FRACTIONS[best])
    for path in (whole.path, tmp_path / "stopped"):
        found = load_model_file(path).weights
        assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_signal_while_weights_are_interpolated_leaves_the_last_ones_in_the_checkpoint(
    bars, tmp_path, monkeypatch, backbone
):
    fields = {"weights": str(backbone.model), "epochs": 1, "learning_rate": 1e-3, **QUICK}
    whole = onsight.train(bars, out=tmp_path / "whole", **fields)

    def load_and_signal(*args):
        for share in load_interpolated(*args):
            request_stop(signal.SIGTERM)
            yield share

    with monkeypatch.context() as patch:
        patch.setattr(fitting, "load_interpolated", load_and_signal)
        with pytest.raises(Interrupted, match="after the last epoch"):
            onsight.train(bars, out=tmp_path / "stopped", **fields)
    onsight.train(bars, out=tmp_path / "stopped", resume=True, reporter=SilentReporter())
    assert compare_folders(whole.path, tmp_path / "stopped").differences == []


@pytest.mark.parametrize(("image_seconds", "count"), [(0.02, 3), (0.15, 0)])
def test_time_for_interpolations_is_kept_only_if_it_is_little(
    bars, tmp_path, monkeypatch, backbone, image_seconds, count
):
    seconds, kept, given_back = [0.0], [], []

    def tick():
        seconds[0] += 0.1
        return seconds[0]

    fit, reserve, release = running.fit, Deadline.reserve, Deadline.release

    def fit_as_if_timed(planned, *rest):
        return fit(replace(planned, estimates=Estimates(0.01, image_seconds)), *rest)

    def note_reserved(self, purpose, seconds):
        if purpose == "interpolation":
            kept.append(seconds)
        reserve(self, purpose, seconds)

    def note_released(self, purpose):
        seconds = release(self, purpose)
        if purpose == "interpolation":
            given_back.append(seconds)
        return seconds

    monkeypatch.setattr(running, "fit", fit_as_if_timed)
    monkeypatch.setattr(Deadline, "reserve", note_reserved)
    monkeypatch.setattr(Deadline, "release", note_released)
    out = tmp_path / "run"
    onsight.train(
        bars, out=out, weights=str(backbone.model), budget="20s", spent=tick, batch_size=16, **QUICK
    )
    decisions = read_decisions(out)
    images = decisions["validation images"]
    assert images > 5
    assert decisions["interpolations"] == count
    assert kept == ([pytest.approx(3 * images * image_seconds)] if count else [])
    assert given_back == (kept or [0.0])
