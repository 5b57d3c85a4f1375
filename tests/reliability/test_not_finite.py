"""NaN or infinity in an input, a loss or a gradient: no update, a message, and finite files."""

import functools
import json
import math
import random

import pytest
from tally import Tally, count
from test_kills import STEPS
from trials import leftovers, resume, train

from onsight.step.step import Step
from onsight.tensorfile import read_tensors
from onsight.training.trainer import Trainer
from onsight.training.verify_resume import compare_folders

PLACES = ("input", "loss", "gradient")
VALUES = (math.nan, math.inf, -math.inf)


def plant(place, value, at, notes):
    """Make one number of a step not finite; record its images, and any update of the weights."""
    real_train, real_make, real_update = Trainer._train_step, Step._make_gradients, Step._update
    steps = 0

    def train_step(self, batch, *schedule):
        nonlocal steps
        steps += 1
        if steps == at:
            where = [
                self.progress.epoch + 1,
                self.progress.step + 1,
                self.data.name_images(batch),
            ]
            notes.write_text(json.dumps(where))
        real_train(self, batch, *schedule)

    def make_gradients(self, inputs, targets, global_labels):
        if steps != at:
            return real_make(self, inputs, targets, global_labels)
        if place == "input":
            inputs = inputs.clone()
            inputs.view(-1)[7] = value
        if place == "loss":
            real_loss = self._forward
            self._forward = lambda *part: (real_loss(*part)[0] + value, real_loss(*part)[1])
        real_make(self, inputs, targets, global_labels)
        if place == "gradient":
            *_, last = self.model.parameters()
            last.grad.view(-1)[-1] = value
        return None

    def update(self):
        before = [parameter.clone() for parameter in self.model.parameters()]
        try:
            real_update(self)
        finally:
            same = all(a.equal(b) for a, b in zip(before, self.model.parameters(), strict=True))
            if steps == at and not same:
                notes.with_suffix(".updated").touch()

    Trainer._train_step, Step._make_gradients, Step._update = train_step, make_gradients, update


@pytest.mark.parametrize("place", PLACES)
def test_a_number_that_is_not_finite_ends_the_run(place, undisturbed, shared_bars, tmp_path):
    tally, drawn = Tally(f"not finite: {place}"), random.Random(place)
    for number in range(count(20, 1)):
        out, notes = tmp_path / f"{number}", tmp_path / f"{number}.notes"
        value, at = VALUES[(number + PLACES.index(place)) % 3], drawn.randrange(1, STEPS + 1)
        with tally.trial(f"{value} in step {at}"):
            ended = train(
                shared_bars, out, prepare=functools.partial(plant, place, value, at, notes)
            )
            check_ended(ended, out, notes)
            assert resume(shared_bars, out).code == 0
            assert compare_folders(undisturbed, out).differences == []
    tally.end()


def check_ended(ended, out, notes):
    """The message names the step and its images; no weights were updated; all files are finite."""
    assert ended.code == 1, ended.output
    assert "Traceback" not in ended.output
    epoch, step, images = json.loads(notes.read_text())
    text = " ".join(ended.output.split())
    assert f"at epoch {epoch}, step {step} of {STEPS // 3}; the weights were not updated" in text
    assert f"Images of that step: {images}" in text
    assert not notes.with_suffix(".updated").exists()
    assert leftovers(out) == []
    # There is a model of the best epoch before, if there was one, and never of the step.
    assert (out / "model.safetensors").exists() == (epoch > 1)
    for path in out.rglob("*.safetensors"):
        tensors, facts = read_tensors(path)
        assert all(tensor.isfinite().all() for tensor in tensors.values()), path
        if path.name == "last.safetensors":
            now = facts["progress"]
            assert (
                now["epoch"] * (STEPS // 3) + now["step"] == (epoch - 1) * (STEPS // 3) + step - 1
            )
