"""What the progress line of a training says."""

import io

from onsight.report import console
from onsight.report.console import Reporter, WrappingConsole
from onsight.training.listener import Listener
from onsight.training.progress import Progress


def test_the_accuracy_so_far_is_that_of_the_best_epoch_on_validation_images(monkeypatch):
    monkeypatch.setattr(console, "_LINE_SECONDS", 0.0)
    page = io.StringIO()
    reporter = Reporter(WrappingConsole(file=page, width=200))
    listener = Listener(reporter, None, None, None, epochs=60, line_steps=0)
    listener.progress = Progress(epoch=59, best_accuracy=0.87, rows=[{"validation_images": 62}])
    listener.segment_started(100)
    listener.step_finished(10)
    listener.closed()
    assert ", best epoch on 62 validation images 87%" in page.getvalue()
