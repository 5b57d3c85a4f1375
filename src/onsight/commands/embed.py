"""The command `onsight embed`."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from onsight.commands.options import CLUSTER, Device, Json, Module


def embed(
    model: Path,
    /,
    *paths: str,
    out: Annotated[
        Path,
        Parameter(help="The file to write: NAME.npz for NumPy, or NAME.parquet for tables."),
    ],
    device: Device = "auto",
    module: Module = None,
    cluster: Annotated[str | None, Parameter(help=CLUSTER)] = None,
    json_: Json = False,
) -> None:
    """Write the features of images to a file, for other programs.

    Features are the numbers that the network's last layer decides by: alike images have alike
    features. The file also has paths, predicted classes, their probabilities, and the inputs that
    cannot be used with the reason.

    Parameters
    ----------
    model
        A run folder or a model file.
    paths
        Images, or folders of images.
    """
    from onsight_explain.spinning import choose_spinning

    choose_spinning()  # before torch loads
    if cluster:
        from onsight.cluster.inference import embed_on_cluster

        embed_on_cluster(cluster, model, paths, out, device, module, json_)
        return
    from onsight.inference.embed import embed_files

    embed_files(model, paths, out, device=device, module=module, as_json=json_)
