"""How a model came about: its network, what it started from, its training, time and energy."""

from collections.abc import Iterator

from onsight.models.catalog import is_user_spec, own_names
from onsight.report.card.subject import Subject
from onsight.words import duration, gib, plural

_WATT_SECONDS = 3600  # in a watt-hour


def circumstances(subject: Subject) -> list[str]:
    """A sentence each on the network, the training, the machine and the energy."""
    return [
        *_network(subject),
        *_training(subject),
        *_machine(subject),
        *_energy(subject),
    ]


def _network(subject: Subject) -> Iterator[str]:
    name, config = subject.file.model, subject.config
    whose = (
        "a network of the user's own"
        if is_user_spec(name)
        else "a network of Onsight"
        if name in own_names()
        else "a network of timm"
    )
    count = sum(tensor.numel() for tensor in subject.file.weights.values())
    size = subject.results["parameters"]
    yield f"Network: `{name}`, {whose}, with {plural(size or count, 'parameter')}."
    if subject.file.hidden_units:
        units = plural(subject.file.hidden_units, "unit")
        yield f"Its head has a hidden layer of {units}, which Onsight added."
    if config["pretrained"] or config["weights"]:
        how = "its backbone stayed as it was" if config["freeze"] else "all of it was fine-tuned"
        origin = "published weights" if config["pretrained"] else "weights that the user gave"
        yield f"It started from {origin}, whose license and training data matter too; {how}."
    else:
        yield "It started from random weights."


def _training(subject: Subject) -> Iterator[str]:
    results, config = subject.results, subject.config
    if results["epochs"] and config:
        yield (
            f"Training: {plural(results['epochs'], 'epoch')}, batches of {config['batch_size']}, "
            f"optimizer {config['optimizer']}, seed {config['seed']}; kept: epoch "
            f"{results['best_epoch']}, the best on validation images."
        )
    seconds = (results["phases"] or {}).get("training")
    if seconds is not None and results["seconds"]:
        yield f"Time: {duration(results['seconds'])} in all, {duration(seconds)} of it training."


def _machine(subject: Subject) -> Iterator[str]:
    known = subject.environment
    if known["device_name"]:
        ranks = subject.results["ranks"] or 1
        many = f"{ranks} processes on " if ranks > 1 else ""
        yield f"Machine: {many}{known['device_name']} ({known['device']})."
    if memory := subject.results["peak_memory_bytes"]:
        yield f"Peak memory: {gib(memory)}."
    versions = subject.file.provenance.get("versions") or {}
    if versions:
        yield (
            "Made with "
            + ", ".join(f"{name} {version}" for name, version in versions.items())
            + "."
        )


def _energy(subject: Subject) -> Iterator[str]:
    """No figure but arithmetic: nothing measured the power, and guesses about it differ tenfold."""
    seconds = subject.results["seconds"]
    if not seconds:
        return
    ranks = subject.results["ranks"] or 1
    hours = 100 * seconds / _WATT_SECONDS
    watt_hours = f"{hours:,.0f}" if hours >= 10 else f"{hours:.2g}"
    yield (
        "Energy and emissions were not measured. For every 100 W that the machine drew, this run "
        f"took {watt_hours} Wh" + (" on each machine." if ranks > 1 else ".")
    )
