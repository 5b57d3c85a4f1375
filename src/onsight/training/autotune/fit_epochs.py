"""How many epochs fit into a time budget: measured when training is about to begin."""

import time
from itertools import islice

from onsight.config import Config
from onsight.data.dataset import Dataset
from onsight.data.index import TEST, TRAIN, VALIDATION
from onsight.data.loader import Loader
from onsight.evaluation.per_image import BATCH_SIZE, evaluate_batches
from onsight.models.classifier import Classifier
from onsight.models.tta import VIEWS
from onsight.report.console import Reporter
from onsight.training.autotune.trial import Trial
from onsight.training.budget import Budget
from onsight.training.pictures.training_data import TrainingData
from onsight.training.step.calibrate import SAMPLE as CALIBRATION_SAMPLE
from onsight.training.step.timing import mean_seconds


def fit_epochs(budget: Budget, config: Config, data: TrainingData, reporter: Reporter) -> Config:
    """Start the clock of training; report how many epochs fit and return the config with them."""
    dataset = data.dataset
    trial = Trial(config, data)
    size = min(config.batch_size, len(dataset.ids(TRAIN)))
    timed = trial.at(size)
    timed(1)
    per_picture = mean_seconds(lambda: timed(1)) / size
    budget.begin(evaluated_pictures(config, dataset), _judging_seconds(trial))
    validation = len(dataset.ids(VALIDATION))
    epoch_seconds = len(dataset.ids(TRAIN)) * per_picture + validation * budget.picture_seconds
    folds = dataset.folds.value
    trainings = folds + 1 if folds > 1 else 1
    epoch_seconds *= trainings
    epochs, more = budget.left_seconds / epoch_seconds, budget.seconds / epoch_seconds
    each = f" for each of {folds} folds and the final model" if folds > 1 else ""
    reporter.say(
        f"budget: {budget.seconds:.0f} s, of which {budget.spent():.0f} are spent and "
        f"{budget.left_seconds:.0f} are left for training: about {epochs:.1f} epochs{each} at "
        f"{1 / per_picture:,.0f} images/s; with twice the time about {epochs + more:.1f}"
    )
    return config.model_copy(update={"epochs": max(1, round(epochs))})


def evaluated_pictures(config: Config, dataset: Dataset) -> int:
    """How many pictures are evaluated after the last epoch, counting every view."""
    validation, test = (len(dataset.ids(split)) for split in (VALIDATION, TEST))
    calibrated = min(validation, CALIBRATION_SAMPLE)
    return validation + calibrated + (1 + len(VIEWS.get(config.tta, ()))) * test


def _judging_seconds(trial: Trial) -> float:
    """Seconds to evaluate a picture; the first batch is not timed."""
    net, scaling, device = trial.step.model, trial.data.normalization, trial.data.device
    classifier = Classifier(net, scaling, trial.config.precision, device)
    ids = trial.ids[: 2 * BATCH_SIZE]
    loader = Loader(trial.data.pictures, ids, BATCH_SIZE, device)
    judge = iter(loader.in_order())
    evaluate_batches(classifier, islice(judge, 1))
    begun = time.perf_counter()
    evaluate_batches(classifier, judge)
    return (time.perf_counter() - begun) / max(1, len(ids) - BATCH_SIZE)
