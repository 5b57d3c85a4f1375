"""Where a FileGuard reaches into a process: Python's own functions, and libraries' that open files.

Only what a script calls in Python: a library that is not named here and opens files in C, and a
program that the script starts, write where they are told.
"""

import builtins
import functools
import inspect
import io
import multiprocessing.spawn
import os
import shutil
from collections.abc import Callable
from types import ModuleType
from typing import Any, Literal, NamedTuple

from onsight_explain.process.file_guard import FileGuard
from onsight_explain.tracing.imports import when_imported
from onsight_explain.tracing.patches import Patches

Use = Literal["read", "write", "change"]  # change: what is there is kept
Call = Callable[..., Any]

_CHANGES = ("truncate", "utime", "chmod", "chown", "setxattr", "removexattr")
_OPENS = (("tarfile", "bltn_open"), ("bz2", "_builtin_open"), ("lzma", "_builtin_open"))
_SUPPORTS = (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks)
_SAFETENSORS = ("safetensors", "safetensors.torch", "safetensors.numpy")


class _Foreign(NamedTuple):
    """A function that opens a file in C, C++ or Rust.

    modules: that keep it; place, path: of the path among its arguments, and its name.
    """

    modules: tuple[str, ...]
    name: str
    place: int
    path: str
    use: Use


_FOREIGN = (
    _Foreign(("torch.serialization", "torch"), "save", 1, "f", "write"),
    _Foreign(("torch.serialization", "torch"), "load", 0, "f", "read"),
    _Foreign(("torch._C",), "PyTorchFileWriter", 0, "name", "write"),  # of torch.export
    _Foreign(("torch._C",), "PyTorchFileReader", 0, "name", "read"),
    _Foreign(("torch.jit._script",), "RecursiveScriptModule.save", 1, "f", "write"),
    _Foreign(("torch.jit._script",), "ScriptModule.save", 1, "f", "write"),
    _Foreign(("torch.jit._serialization", "torch.jit"), "load", 0, "f", "read"),
    _Foreign(_SAFETENSORS, "serialize_file", 1, "filename", "write"),
    _Foreign(_SAFETENSORS, "safe_open", 0, "filename", "read"),
    _Foreign(("cv2",), "imwrite", 0, "filename", "write"),
    _Foreign(("cv2",), "imread", 0, "filename", "read"),
    _Foreign(("sqlite3.dbapi2", "sqlite3"), "connect", 0, "database", "change"),
)


def guard_process(guard: FileGuard, patches: Patches | None = None) -> None:
    """Let this process, and those that multiprocessing starts from it, keep the user's files."""
    _Guarding(guard, patches or Patches()).install()


class _Guarding:
    def __init__(self, guard: FileGuard, patches: Patches) -> None:
        self.guard, self.patches = guard, patches
        self._replaced: list[tuple[Any, Any]] = []

    def install(self) -> None:
        """Replace the functions, those of libraries as soon as they are imported."""
        guard = self.guard
        self._put_builtins(
            os,
            open=guard.os_open,
            rename=guard.rename,
            replace=guard.rename,
            remove=guard.remove,
            unlink=guard.remove,
            rmdir=guard.rmdir,
            mkdir=guard.mkdir,
            symlink=guard.symlink,
            stat=guard.stat,
        )
        for name in _CHANGES:
            if hasattr(os, name):  # not on every system
                self._put_builtins(os, **{name: self._changing(getattr(os, name))})
        self._put_builtins(builtins, open=guard.open)
        self.patches.put(io, "open", builtins.open)
        for module, name in _OPENS:  # which keep the original
            self._when_imported(module, functools.partial(self._put_open, name=name))
        self.patches.put(shutil, "rmtree", guard.rmtree)
        for foreign in _FOREIGN:
            for module in foreign.modules:
                self._when_imported(module, functools.partial(self._put_foreign, foreign))
        self._when_imported("numpy", self._put_memmap)
        self._when_imported("numpy.lib._datasource", self._put_openers)
        self._put_preparation()

    def _when_imported(self, module: str, action: Callable[[ModuleType], None]) -> None:
        when_imported(module, action, self.patches)

    def _put_builtins(self, owner: ModuleType, **calls: Call) -> None:
        for name, call in calls.items():
            original = getattr(owner, name)
            replaced = _Builtin(original, call, owner.__name__)
            self.patches.put(owner, name, replaced)
            for functions in _SUPPORTS:
                if original in functions:
                    functions.add(replaced)

    def _put_open(self, module: ModuleType, name: str) -> None:
        if hasattr(module, name):
            self.patches.put(module, name, builtins.open)

    def _put_foreign(self, foreign: _Foreign, module: ModuleType) -> None:
        *owners, name = foreign.name.split(".")
        owner = functools.reduce(getattr, owners, module)
        original = getattr(owner, name, None)
        if original is None or any(original is new for _, new in self._replaced):
            return
        known = [new for old, new in self._replaced if old is original]
        new = known[0] if known else self._through(original, foreign, module.__name__)
        self._replaced.append((original, new))
        self.patches.put(owner, name, new)

    def _through(self, original: Any, foreign: _Foreign, module: str) -> Call:
        """A function that is given the path of the copy instead, if there is one."""
        _, _, place, name, use = foreign

        def call(*args: Any, **settings: Any) -> Any:
            if name in settings:
                settings[name] = self._path(settings[name], use)
            elif len(args) > place:
                args = (*args[:place], self._path(args[place], use), *args[place + 1 :])
            return original(*args, **settings)

        if inspect.isfunction(original):
            return functools.wraps(original)(call)
        return _Builtin(original, call, module)

    def _path(self, path: Any, use: Use) -> Any:
        if not isinstance(path, str | bytes | os.PathLike):
            return path
        if use == "read":
            return self.guard.reading(path)
        return self.guard.writing(path, keeps=use == "change")

    def _changing(self, original: Call) -> Call:
        def change(path: Any, *args: Any, dir_fd: int | None = None, **settings: Any) -> Any:
            if dir_fd is not None:
                return original(path, *args, dir_fd=dir_fd, **settings)
            if not isinstance(path, int):
                path = self.guard.reading(path)
                if os.path.lexists(path):
                    path = self.guard.writing(path, keeps=True)
            return original(path, *args, **settings)

        return change

    def _put_memmap(self, numpy: ModuleType) -> None:
        """Arrays in a user's file are changed in memory alone: such a file may be very large."""
        original = numpy.memmap.__new__

        def make(
            kind: type,
            filename: Any,
            dtype: Any = numpy.uint8,
            mode: str = "r+",
            *args: Any,
            **settings: Any,
        ) -> Any:
            is_path = isinstance(filename, str | bytes | os.PathLike)
            if is_path and mode in ("r+", "readwrite") and self.guard.keeps(filename):
                mode = "c"
            return original(kind, filename, dtype, mode, *args, **settings)

        self.patches.put(numpy.memmap, "__new__", staticmethod(make))

    def _put_openers(self, module: ModuleType) -> None:
        """Text of arrays is opened by what numpy kept when it was imported."""
        openers: Any = getattr(module, "_file_openers", None)
        if isinstance(kept := getattr(openers, "_file_openers", None), dict):
            self.patches.put(openers, "_file_openers", kept | {None: builtins.open})

    def _put_preparation(self) -> None:
        original = multiprocessing.spawn.get_preparation_data

        def prepared(name: str) -> dict[str, Any]:
            return original(name) | {"onsight_guard": _InSpawned(self.guard)}

        self.patches.put(multiprocessing.spawn, "get_preparation_data", prepared)


class _Builtin:
    """Called in the place of a builtin: like one, it is no method where a class keeps it."""

    def __init__(self, original: Call, call: Call, module: str) -> None:
        functools.update_wrapper(self, original, updated=())
        self.__module__, self._name = module, original.__name__
        self._call = call

    def __call__(self, *args: Any, **settings: Any) -> Any:
        return self._call(*args, **settings)

    def __reduce__(self) -> str:
        return self._name


class _InSpawned:
    """A guard that works in a spawned process from when it is unpickled, before any of its code."""

    def __init__(self, guard: FileGuard) -> None:
        self.guard = guard

    def __reduce__(self) -> tuple[Callable[[FileGuard], None], tuple[FileGuard]]:
        return guard_process, (self.guard,)
