"""A change where a framework runs the loop is a setting of that framework."""

import pytest

from onsight_explain.delivery.fixed_script import fix_script, fixes_for
from onsight_explain.script.trace import LoaderFacts, OptimizerFacts, Trace
from onsight_explain.tracing.sites import Site
from onsight_explain.what_ifs.batch import LargerBatch
from onsight_explain.what_ifs.caching import Cache
from onsight_explain.what_ifs.channels_last import ChannelsLast
from onsight_explain.what_ifs.loading import Workers
from onsight_explain.what_ifs.optimizer import FusedOptimizer
from onsight_explain.what_ifs.precision import Bf16

HUGGING_FACE = """\
from transformers import Trainer, TrainingArguments
args = TrainingArguments(
    "out",
    per_device_train_batch_size=8,
)
trainer = Trainer(model, args)
trainer.train()
"""
LIGHTNING = """\
loader = DataLoader(photos, 8)
trainer = L.Trainer(max_epochs=3)
trainer.fit(model, loader)
"""
FASTAI = """\
dls = ImageDataLoaders.from_folder(path, bs=8)
learn = Learner(dls, net)
learn.fit(3)
"""


def traced(script, maker, trainer, loader_line, trainer_line):
    def site(line):
        text = script.read_text().splitlines()[line - 1]
        return Site(file=str(script), line=line, end=(line, len(text)))

    loader = LoaderFacts(
        site=site(loader_line),
        maker=maker,
        batch_size=8,
        workers=0,
        is_pinned=False,
        is_persistent=False,
        is_shuffled=True,
        items=1000,
    )
    return Trace(
        ended="window",
        startup_seconds=1.0,
        loader=loader,
        optimizer=OptimizerFacts(name="AdamW", site=site(trainer_line), is_fused=False),
        trainer=trainer,
        trainer_site=site(trainer_line),
        forward_site=site(trainer_line),
    )


@pytest.mark.parametrize(
    ("text", "maker", "trainer", "lines", "what_ifs", "expected"),
    [
        (
            HUGGING_FACE,
            "transformers",
            "transformers",
            (7, 7),
            [Workers(2), LargerBatch(8, 64), Bf16(True), FusedOptimizer(True)],
            [
                "    per_device_train_batch_size=64,",
                "    dataloader_num_workers=2,",
                "    bf16=True,",
                '    optim="adamw_torch_fused",',
            ],
        ),
        (
            LIGHTNING,
            "",
            "lightning",
            (1, 3),
            [Workers(2), Bf16(True)],
            [
                "loader = DataLoader(photos, 8, num_workers=2)",
                'trainer = L.Trainer(max_epochs=3, precision="bf16-mixed")',
            ],
        ),
        (
            FASTAI,
            "fastai",
            "fastai",
            (1, 3),
            [Workers(2), LargerBatch(8, 64)],
            ["dls = ImageDataLoaders.from_folder(path, bs=64, num_workers=2)"],
        ),
    ],
    ids=["transformers", "lightning", "fastai"],
)
def test_the_setting_is_written_into_the_script(
    tmp_path, text, maker, trainer, lines, what_ifs, expected
):
    script = tmp_path / "train.py"
    script.write_text(text)
    trace = traced(script, maker, trainer, *lines)
    after = fix_script(script, fixes_for(what_ifs, trace)).after.decode().splitlines()
    before = text.splitlines()
    new = [row for row in after if row not in before and not row.startswith("#")]
    assert sorted(new) == sorted(expected)


def test_settings_that_come_from_elsewhere_are_told(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("args, = parser.parse_args_into_dataclasses()\ntrainer.train()\n")
    trace = traced(script, "transformers", "transformers", 2, 2)
    (line,) = fix_script(script, fixes_for([Workers(2)], trace)).lines
    assert "TrainingArguments(..., dataloader_num_workers=2)" in line.text
    assert line.left


@pytest.mark.parametrize(
    ("what_if", "words"),
    [
        (Bf16(True), "learn.to_bf16()"),
        (ChannelsLast(True), "model.to(memory_format=torch.channels_last)"),
        (Cache("items"), "items cached in memory: a setting of fastai"),
    ],
)
def test_what_happens_inside_a_library_is_told_and_not_written(tmp_path, what_if, words):
    script = tmp_path / "train.py"
    script.write_text(FASTAI)
    trace = traced(script, "fastai", "fastai", 1, 3)
    (line,) = fix_script(script, fixes_for([what_if], trace)).lines
    assert words in line.text
    assert line.left
