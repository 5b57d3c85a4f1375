"""Ray at its border, in this process: what it is asked to run runs at once, in order."""

from types import ModuleType, SimpleNamespace


class RayError(Exception):
    """What Ray raises."""


class Handle:
    """An actor: a call gives its result, an exception is raised when the result is asked for."""

    def __init__(self, made):
        self._made = made

    def __getattr__(self, name):
        return SimpleNamespace(remote=lambda *given: Result(getattr(self._made, name), given))


class Result:
    def __init__(self, function, given):
        self.error = self.value = None
        try:
            self.value = function(*(get(argument) for argument in given))
        except Exception as error:
            self.error = error


def get(result):
    if not isinstance(result, Result):
        return result
    if result.error:
        raise RayError(str(result.error)) from result.error
    return result.value


class Dataset:
    def __init__(self, blocks):
        self.blocks = blocks

    def map_batches(self, model, *, fn_constructor_args, **options):
        self.options, self.model = options, (model, fn_constructor_args)
        return self

    def iter_batches(self, **options):
        model, given = self.model
        return map(model(*given), self.blocks)


def make_fake_ray(nodes=({"CPU": 1.0},), size=1):
    """The modules of Ray by their names; attributes of `ray` may be replaced by a test."""
    ray, data, train, collective = (
        ModuleType(name) for name in ("ray", "ray.data", "ray.train", "ray.train.collective")
    )

    def remote(target):
        def begin(*given):
            return Handle(target(*given)) if isinstance(target, type) else Result(target, given)

        made = SimpleNamespace(remote=begin)
        made.options = lambda **options: made
        return made

    ray.calls = []
    ray.is_initialized = lambda: False
    ray.init = lambda **given: ray.calls.append(("init", given))
    ray.shutdown = lambda: ray.calls.append(("shutdown", {}))
    ray.nodes = lambda: [{"Alive": True, "Resources": node} for node in nodes]
    ray.get_runtime_context = lambda: SimpleNamespace(get_node_id=lambda: "node")
    ray.remote, ray.get, ray.put = remote, get, lambda value: value
    ray.wait = lambda results, timeout: (results, [])
    ray.exceptions = SimpleNamespace(RayError=RayError)
    ray.data, ray.train = data, train
    data.from_arrow = Dataset
    data.ActorPoolStrategy = SimpleNamespace
    settings = SimpleNamespace(execution_options=SimpleNamespace())
    data.DataContext = SimpleNamespace(get_current=lambda: settings)
    context = SimpleNamespace(get_world_rank=lambda: 0, get_world_size=lambda: size)
    train.get_context = lambda: context
    train.collective = collective
    collective.broadcast_from_rank_zero = lambda value: value
    return {module.__name__: module for module in (ray, data, train, collective)}
