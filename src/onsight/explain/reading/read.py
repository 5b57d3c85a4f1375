"""A training script read without running it: every mistake found, with its line fixed."""

from pathlib import Path

from onsight.explain.reading.facts import Facts
from onsight.explain.reading.finding import Finding
from onsight.explain.reading.loops import batch_loops
from onsight.explain.reading.rules.batchsizes import batch_sizes
from onsight.explain.reading.rules.checkpoints import map_locations, whole_modules
from onsight.explain.reading.rules.evaluating import missing_eval, missing_no_grad
from onsight.explain.reading.rules.graphs import kept_graphs
from onsight.explain.reading.rules.guards import main_guards
from onsight.explain.reading.rules.listings import listed_pairs
from onsight.explain.reading.rules.means import batch_means
from onsight.explain.reading.rules.moves import discarded_moves
from onsight.explain.reading.rules.parallel import data_parallel
from onsight.explain.reading.rules.pictures import swallowed_pictures
from onsight.explain.reading.rules.retraining import missing_train
from onsight.explain.reading.rules.rows import appended_apart
from onsight.explain.reading.rules.shuffled import shuffled_pairs
from onsight.explain.reading.rules.softmaxes import softmaxes
from onsight.explain.reading.steploops import step_loops

_ON_CODE = (
    discarded_moves,
    map_locations,
    whole_modules,
    softmaxes,
    swallowed_pictures,
    appended_apart,
    listed_pairs,
)
_ON_LOADERS = (
    batch_means,
    batch_sizes,
    main_guards,
    shuffled_pairs,
)
_ON_STEPS = (
    data_parallel,
    kept_graphs,
    missing_eval,
    missing_no_grad,
    missing_train,
)


def read_script(path: Path) -> list[Finding]:
    """The mistakes in a script and in the modules of its own folder that it imports.

    The script's own come first, each file's in the order of its lines. Raises DataError, with
    file and line, for what Python cannot parse.
    """
    facts = Facts(Path(path))
    loops = batch_loops(facts)
    findings = [finding for rule in _ON_CODE for finding in rule(facts)]
    findings += [finding for rule in _ON_LOADERS for finding in rule(facts, loops)]
    steps = step_loops(facts, loops)
    findings += [finding for rule in _ON_STEPS for finding in rule(facts, steps)]
    files = [source.path for source in facts.script.sources]
    return sorted(findings, key=lambda one: (files.index(one.file), one.line, one.rule))
