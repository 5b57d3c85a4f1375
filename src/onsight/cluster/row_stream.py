"""Ray Data's part: blocks of paths through the actors that hold the model, in order."""

from collections.abc import Iterator
from typing import Any

from onsight.cluster.shares import Share


class RowStream:
    """An actor on the cluster that runs the data set; tables of rows are taken from it in turn."""

    def __init__(self) -> None:
        self._tables: Iterator[Any] = iter(())

    def begin(
        self, blocks: list[Any], model: Any, arguments: tuple[Any, ...], share: Share
    ) -> None:
        """Start; blocks: tables, each given to the model as it is."""
        import ray
        from ray.data import ActorPoolStrategy, DataContext

        context = DataContext.get_current()
        context.enable_progress_bars = False
        context.execution_options.preserve_order = True
        rows = ray.data.from_arrow(blocks).map_batches(
            model,
            fn_constructor_args=arguments,
            batch_size=None,
            batch_format="pyarrow",
            num_cpus=share.cpus,
            num_gpus=share.gpus or None,
            compute=ActorPoolStrategy(min_size=1, max_size=share.processes),
        )
        self._tables = iter(rows.iter_batches(batch_size=None, batch_format="pyarrow"))

    def next(self) -> Any:
        """The next table of rows; None after the last."""
        return next(self._tables, None)
