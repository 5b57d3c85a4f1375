"""What is known about a DataLoader: its settings, and whether its last batch may be smaller."""

import ast

from onsight_lint.calls import keyword, last_name
from onsight_lint.constants import UNKNOWN, Constant, Constants
from onsight_lint.kinds import Kinds
from onsight_lint.script import Script
from onsight_lint.values import Values
from onsight_lint.vocabulary import Kind, word_set

_PLACES = ("dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "num_workers")
_SIZES = {  # numbers of training and test images
    "MNIST": (60_000, 10_000),
    "FashionMNIST": (60_000, 10_000),
    "KMNIST": (60_000, 10_000),
    "CIFAR10": (50_000, 10_000),
    "CIFAR100": (50_000, 10_000),
}
_FILLED = word_set("randn rand zeros ones empty full randint arange")


class Loaders:
    """Answers questions about loaders by the calls that create them."""

    def __init__(self, script: Script, values: Values, kinds: Kinds, constants: Constants) -> None:
        self.script, self.values = script, values
        self.kinds, self.constants = kinds, constants
        self._drops = any(
            _says(node, "drop_last") for node in script.nodes(ast.keyword, ast.Constant)
        )

    def made(self, loader: ast.AST) -> list[ast.Call]:
        """The calls that create a loader."""
        nodes = [origin.node for origin in self.values.origins(loader) if not origin.steps]
        return [
            node
            for node in nodes
            if isinstance(node, ast.Call) and self.kinds.kind(node) is Kind.LOADER
        ]

    def setting(self, call: ast.Call, name: str) -> ast.expr | None:
        """An argument of the call: by keyword, by position, or from `**settings`."""
        found = keyword(call, name)
        if found is not None:
            return found
        place = _PLACES.index(name) if name in _PLACES else len(call.args)
        if place < len(call.args):
            return call.args[place]
        for one in call.keywords:
            if one.arg is None and (value := self._from_dict(one.value, name)) is not None:
                return value
        return None

    def fixed(self, call: ast.Call, name: str, default: Constant) -> Constant:
        """The value of a setting, if it is constant."""
        value = self.setting(call, name)
        if value is None:
            open_ended = any(one.arg is None for one in call.keywords)
            return UNKNOWN if open_ended and name != "drop_last" else default
        return self.constants.fixed(value)

    def last_may_be_short(self, loader: ast.AST) -> bool:
        """Whether the last batch may have fewer rows than the others."""
        made = self.made(loader)
        if not made:
            origins = self.values.origins(loader)
            return not self._drops and not any(isinstance(one.node, ast.arg) for one in origins)
        return any(self._may_be_short(call) for call in made)

    def batch_sizes(self) -> set[int]:
        """The known batch sizes of all loaders."""
        found: set[int] = set()
        for call in self.values.calls("DataLoader"):
            value = self.setting(call, "batch_size")
            size = UNKNOWN if value is None else self.constants.fixed_or_default(value)
            if isinstance(size, int):
                found.add(size)
        return found

    def has_sampler(self, loader: ast.AST) -> bool:
        """Whether a loader has a sampler, and so may see only a part of its dataset."""
        return any(
            value is not None and self.constants.fixed(value) is not None
            for call in self.made(loader)
            for value in [self.setting(call, "sampler")]
        )

    def divides_evenly(self, call: ast.Call) -> bool:
        """Whether all batches are full, because the size of the dataset is known."""
        size = self.fixed(call, "batch_size", 1)
        dataset = self.setting(call, "dataset")
        rows = self._rows(dataset) if dataset is not None else None
        return size == 1 or (isinstance(size, int) and rows is not None and rows % size == 0)

    def _may_be_short(self, call: ast.Call) -> bool:
        if self.setting(call, "batch_sampler") is not None:
            return False
        drop = self.setting(call, "drop_last")
        if drop is not None and self.constants.fixed(drop) is not False:
            return False
        if drop is None and self._drops and any(one.arg is None for one in call.keywords):
            return False
        return self.fixed(call, "batch_size", 1) is not None and not self.divides_evenly(call)

    def _rows(self, dataset: ast.AST) -> int | None:
        """How many rows a dataset has, if that is known."""
        found = {self._rows_of(one.node, one.steps) for one in self.values.origins(dataset)}
        return found.pop() if len(found) == 1 else None

    def _rows_of(self, node: ast.AST, steps: tuple[object, ...]) -> int | None:
        if not isinstance(node, ast.Call):
            return None
        name = last_name(node.func)
        if name == "random_split" and len(node.args) > 1 and steps and isinstance(steps[0], int):
            sizes = node.args[1]
            parts = sizes.elts if isinstance(sizes, (ast.List, ast.Tuple)) else []
            return self._number(parts[steps[0]]) if steps[0] < len(parts) else None
        if steps:
            return None
        if name in _SIZES:
            train = keyword(node, "train") or (node.args[1] if len(node.args) > 1 else None)
            flag = True if train is None else self.constants.fixed(train)
            return _SIZES[name][0 if flag else 1] if isinstance(flag, bool) else None
        if name == "FakeData":
            size = keyword(node, "size") or (node.args[0] if node.args else None)
            return 1000 if size is None else self._number(size)
        if name == "TensorDataset" and node.args:
            return self._filled(node.args[0])
        return None

    def _filled(self, tensor: ast.AST) -> int | None:
        """The first dimension of a tensor created as `torch.randn(1024, ...)`."""
        for origin in self.values.origins(tensor):
            node = origin.node
            if isinstance(node, ast.Call) and last_name(node.func) in _FILLED and not origin.steps:
                sizes = [one for one in node.args if last_name(node.func) != "randint"]
                first = sizes[0] if sizes else None
                if isinstance(first, (ast.Tuple, ast.List)) and first.elts:
                    first = first.elts[0]
                return self._number(first) if first is not None else None
        return None

    def _number(self, expression: ast.AST) -> int | None:
        found = self.constants.fixed(expression)
        return found if isinstance(found, int) else None

    def _from_dict(self, expression: ast.expr, name: str) -> ast.expr | None:
        """What `**settings` contains under a name, where the dicts are literals."""
        updates = [
            call.args[0]
            for call in self.values.calls("update")
            if isinstance(call.func, ast.Attribute) and call.args
            if last_name(call.func.value) == last_name(expression)
        ]
        found = (self._literal(one, name) for one in (expression, *updates))
        return next((value for value in found if value is not None), None)

    def _literal(self, expression: ast.expr, name: str) -> ast.expr | None:
        """What a literal dict contains under a name."""
        for origin in self.values.origins(expression):
            node = origin.node
            if isinstance(node, ast.Dict):
                for key, value in zip(node.keys, node.values, strict=True):
                    if isinstance(key, ast.Constant) and key.value == name:
                        return value
            if isinstance(node, ast.Call) and last_name(node.func) == "dict":
                found = keyword(node, name)
                if found is not None:
                    return found
        return None


def _says(node: ast.AST, word: str) -> bool:
    return (isinstance(node, ast.keyword) and node.arg == word) or (
        isinstance(node, ast.Constant) and node.value == word
    )
