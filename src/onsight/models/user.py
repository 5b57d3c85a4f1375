"""Imports a user's network by its name, package.module:callable.

C channels, H height, W width, K classes.
"""

import copy
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from onsight.errors import ModelError, did_you_mean
from onsight.models.trial_forward import check_output


def make_user_model(spec: str, shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Import package.module:callable, make the network and check it with a trial forward pass.

    The callable is a subclass of nn.Module, a function that returns an nn.Module, or an nn.Module,
    which is copied. It is called with those of num_classes, classes, in_channels, in_chans,
    image_size (H, W) and shape (C, H, W) that it has parameters for.

    Args:
        spec: package.module:callable.
        shape: The shape (C, H, W) of an image.

    Raises:
        ModelError: If the network cannot be imported, made or used.
    """
    target = import_target(spec)
    # A copy, because a network at module level would stay trained for the next run.
    net = (
        copy.deepcopy(target)
        if isinstance(target, nn.Module)
        else _call(spec, target, shape, classes)
    )
    if not isinstance(net, nn.Module):
        raise ModelError(f"'{spec}' returns a {type(net).__name__}, not a torch.nn.Module")
    check_output(net, shape, classes, spec)
    return net


def import_target(spec: str) -> Any:
    """Import what package.module:callable names. Raises ModelError."""
    module_name, name = _split_spec(spec)
    return _get_attribute(spec, _import(spec, module_name), name)


def _split_spec(spec: str) -> tuple[str, str]:
    module_name, _, name = spec.partition(":")
    if module_name.endswith(".py") or "/" in module_name or "\\" in module_name:
        stem = Path(module_name).stem
        raise ModelError(
            f"'{spec}' names a file. Name the module instead, as '{stem}:{name or 'Net'}', "
            "from the folder it is in"
        )
    if not all(part.isidentifier() for part in [*module_name.split("."), name]):
        raise ModelError(f"'{spec}' is not of the form package.module:callable")
    return module_name, name


def _import(spec: str, module_name: str) -> ModuleType:
    with _current_folder_importable():
        try:
            return importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name and f"{module_name}.".startswith(f"{error.name}."):
                raise ModelError(
                    f"there is no module '{error.name}' for '{spec}', neither in {Path.cwd()} "
                    "nor among the installed packages"
                ) from error
            raise _error_during(f"importing '{module_name}'", error) from error
        except (Exception, SystemExit) as error:
            raise _error_during(f"importing '{module_name}'", error) from error


@contextmanager
def _current_folder_importable() -> Iterator[None]:
    folder = str(Path.cwd())
    importlib.invalidate_caches()  # the module may have just been written
    if folder in sys.path:
        yield
        return
    sys.path.append(folder)  # last, so that installed modules take precedence
    try:
        yield
    finally:
        sys.path.remove(folder)


def _get_attribute(spec: str, module: ModuleType, name: str) -> Any:
    if not hasattr(module, name):
        public = [option for option in vars(module) if not option.startswith("_")]
        raise ModelError(
            f"module '{module.__name__}' ({getattr(module, '__file__', None) or 'built in'}) "
            f"has no '{name}' for '{spec}'.{did_you_mean(name, public)}"
        )
    return getattr(module, name)


def _call(spec: str, target: Any, shape: tuple[int, int, int], classes: int) -> Any:
    if not callable(target):
        raise ModelError(
            f"'{spec}' is a {type(target).__name__}, "
            "not an nn.Module or a callable that returns one"
        )
    arguments = _arguments(spec, target, shape, classes)
    try:
        return target(**arguments)
    except (Exception, SystemExit) as error:
        passed = ", ".join(f"{name}={value}" for name, value in arguments.items())
        raise _error_during(f"calling '{spec}' with ({passed})", error) from error


def _arguments(
    spec: str, target: Callable[..., Any], shape: tuple[int, int, int], classes: int
) -> dict[str, Any]:
    """Return the arguments that a callable accepts by name."""
    available = {
        "num_classes": classes,
        "classes": classes,
        "in_channels": shape[0],
        "in_chans": shape[0],
        "image_size": shape[1:],
        "shape": shape,
    }
    try:
        parameters = inspect.signature(target).parameters
    except (TypeError, ValueError):  # some builtins have no signature
        return {}
    named = {name for name, parameter in parameters.items() if _is_passed_by_name(parameter)}
    accepted = {name: value for name, value in available.items() if name in named}
    missing = [
        name
        for name, parameter in parameters.items()
        if _is_required(parameter) and name not in accepted
    ]
    if missing:
        raise ModelError(
            f"'{spec}' needs {', '.join(missing)}, which Onsight does not have. Add a default; "
            f"Onsight passes any of {', '.join(available)}"
        )
    accepts_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    if inspect.getattr_static(target, "__init__", None) is nn.Module.__init__:
        # nn.Module.__init__, inherited by a class without its own, only seems to accept anything.
        accepts_any = False
    if accepts_any and not named & {"num_classes", "classes"}:
        accepted["num_classes"] = classes  # as in torchvision
    return accepted


def _is_passed_by_name(parameter: inspect.Parameter) -> bool:
    return parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)


def _is_required(parameter: inspect.Parameter) -> bool:
    many = (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    return parameter.default is parameter.empty and parameter.kind not in many


def _error_during(action: str, error: BaseException) -> ModelError:
    return ModelError(f"{action} raised {type(error).__name__}: {error}")
