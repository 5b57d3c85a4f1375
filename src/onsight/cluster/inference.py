"""`predict` and `embed` on a Ray cluster, with the options of the commands."""

from collections.abc import Sequence
from pathlib import Path

from onsight.cluster.predictions import ClusterPredictions
from onsight.cluster.session import ray_cluster
from onsight.errors import ConfigError
from onsight.inference.embed import embed_files
from onsight.inference.predict import OutputOptions, predict_files


def predict_on_cluster(
    cluster: str,
    model: Path,
    paths: Sequence[str],
    options: OutputOptions,
    device: str,
    module: str | None,
) -> None:
    """Write the rows that list_predictions writes, computed by a cluster.

    cluster: as for ray_cluster. Raises UserError, ClusterFailed.
    """
    if options.resume:
        raise ConfigError(
            "--resume goes on where one machine left off: leave it out on a --cluster"
        )
    options.check(model, paths)
    with ray_cluster(cluster) as ray:
        mapped = ClusterPredictions(ray, model, device, module, bool(options.top))
        predict_files(model, paths, options, device="cpu", module=module, batches=mapped.batches)


def embed_on_cluster(
    cluster: str,
    model: Path,
    paths: Sequence[str],
    out: Path,
    device: str,
    module: str | None,
    as_json: bool,
) -> None:
    """Write the file that embed_files writes, computed by a cluster; arguments as there."""
    with ray_cluster(cluster) as ray:
        mapped = ClusterPredictions(ray, model, device, module)
        embed_files(
            model,
            paths,
            out,
            device="cpu",
            module=module,
            as_json=as_json,
            batches=mapped.batches,
        )
