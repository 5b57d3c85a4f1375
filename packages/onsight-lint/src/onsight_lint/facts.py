"""Facts about a script: its values and their kinds, its constants, and its DataLoaders."""

import ast
import re
from functools import cached_property

from onsight_lint.kinds import Kind, Kinds
from onsight_lint.script import Script
from onsight_lint.syntax import call_owner, keyword_value, last_name, option_name, word_set
from onsight_lint.values import Values

_CORE_COUNTS = ("os.cpu_count", "multiprocessing.cpu_count", "os.process_cpu_count")
_LOADER_PARAMETERS = ("dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "num_workers")
DATASET_SIZES = {  # training and test images
    "MNIST": (60_000, 10_000),
    "FashionMNIST": (60_000, 10_000),
    "KMNIST": (60_000, 10_000),
    "CIFAR10": (50_000, 10_000),
    "CIFAR100": (50_000, 10_000),
}
DATASET_PARTS = ("torch.utils.data.random_split", "torch.utils.data.Subset")
_TENSOR_CREATORS = word_set("randn rand zeros ones empty full randint arange")
_NETWORK_USES = word_set("eval train parameters state_dict load_state_dict forward module")
_DICT_USES = word_set("keys items get pop update values")
_FOR_TESTS = re.compile(  # names of loaders
    r"^(?!.*train).*(?:^|_)(?:val|valid|validation|test|eval|dev)(?:_|\d*$|data|loader|set|dl)",
    re.IGNORECASE,
)


class Facts:
    """A parsed script and the facts about it; each is computed when a rule first needs it."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.network_calls: dict[ast.AST, list[ast.Call]] = {}  # of loops.network_calls
        self.backward_keys: dict[ast.AST, set[str]] = {}  # by function, of loops.backward_keys

    @cached_property
    def values(self) -> Values:
        """The origins of values."""
        return Values(self.script)

    @cached_property
    def kinds(self) -> Kinds:
        """The kinds of values."""
        return Kinds(self.script, self.values)

    @cached_property
    def constants(self) -> "Constants":
        """The values that never change."""
        return Constants(self.script, self.values)

    @cached_property
    def loaders(self) -> "LoaderSettings":
        """The DataLoaders."""
        return LoaderSettings(self)

    @cached_property
    def torch_loads(self) -> list[ast.Call]:
        """The calls of torch.load."""
        calls = [call for call in self.values.calls("load") if call.args]
        return [call for call in calls if self.script.path_of(call.func) == "torch.load"]

    def loaded_network(self, call: ast.Call) -> ast.expr | None:
        """Return the variable for the result of a torch.load, if it is itself used as a network."""
        match self.script.statement(call):
            case ast.Assign(targets=[ast.Name() | ast.Attribute() as target], value=value):
                while isinstance(value, ast.Call) and value is not call:  # load(path).to(device)
                    value = call_owner(value) or value.func
                used = self.kinds.uses(target)
                is_network = used & _NETWORK_USES and not used & _DICT_USES
                return target if value is call and is_network else None
        return None

    def device_name(self, node: ast.expr) -> str:
        """Return the name of the user's variable `device` where it is known; else ""."""
        scopes = self.script.scope(node)
        for home in (self.script.function(node), self.script.source(node).tree):
            bindings = scopes.tables[home].get("device", [])
            known = [binding for binding in bindings if binding.kind in ("value", "parameter")]
            is_module = isinstance(home, ast.Module)
            if any(not is_module or binding.position < (node.lineno, 0) for binding in known):
                return "device"
        return ""


class Unknown:
    """The value of an expression that is not constant."""


UNKNOWN = Unknown()

Constant = int | float | str | bool | None | Unknown


class Constants:
    """Finds the value of an expression that always has the same one."""

    def __init__(self, script: Script, values: Values) -> None:
        self.script, self.values = script, values

    def value(self, expression: ast.AST) -> Constant:
        """Return the value of a constant expression, or UNKNOWN."""
        values = {self._value(node) for node in self._whole_origins(expression)}
        return values.pop() if len(values) == 1 else UNKNOWN

    def value_or_default(self, expression: ast.AST) -> Constant:
        """Return the value of a constant, or the default of a command line option."""
        value = self.value(expression)
        if value is not UNKNOWN:
            return value
        defaults = {self._default(node) for node in self._whole_origins(expression)}
        return defaults.pop() if len(defaults) == 1 else UNKNOWN

    def _whole_origins(self, expression: ast.AST) -> list[ast.AST | None]:
        """The origins of an expression; None for a part of something."""
        origins = self.values.origins(expression)
        return [None if origin.steps else origin.node for origin in origins]

    def _value(self, node: ast.AST | None) -> Constant:
        if isinstance(node, ast.Constant) and isinstance(node.value, (int, float, str)):
            return node.value
        if isinstance(node, ast.Constant) and node.value is None:
            return None
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            inner = self._value(node.operand)
            return -inner if isinstance(inner, (int, float)) else UNKNOWN
        return UNKNOWN

    def _default(self, node: ast.AST | None) -> Constant:
        if isinstance(node, ast.Call) and self.script.path_of(node.func) in _CORE_COUNTS:
            return 2  # or more, on any machine where it matters
        if isinstance(node, ast.Attribute):
            return self._option_default(node.attr)
        return UNKNOWN if node is None else self._value(node)

    def _option_default(self, name: str) -> Constant:
        """The default of `--name` on the command line of the script."""
        for call in self.values.calls("add_argument"):
            default = keyword_value(call, "default")
            if default is not None and last_name(default) != name and option_name(call) == name:
                return self.value(default)
        return UNKNOWN


class LoaderSettings:
    """Facts about DataLoaders, from the calls that create them."""

    def __init__(self, facts: Facts) -> None:
        self.script, self.values = facts.script, facts.values
        self.kinds, self.constants = facts.kinds, facts.constants
        words = {keyword.arg for keyword in self.script.nodes(ast.keyword)}
        words |= {constant.value for constant in self.script.nodes(ast.Constant)}
        self._names_drop_last = "drop_last" in words

    def creations(self, loader: ast.AST) -> list[ast.Call]:
        """Return the calls that may create a loader."""
        nodes = [origin.node for origin in self.values.origins(loader) if not origin.steps]
        return [
            node
            for node in nodes
            if isinstance(node, ast.Call) and self.kinds.kind(node) is Kind.LOADER
        ]

    def setting(self, call: ast.Call, name: str) -> ast.expr | None:
        """Return an argument of the call: by keyword, by position, or from `**settings`."""
        value = keyword_value(call, name)
        if value is not None:
            return value
        n = _LOADER_PARAMETERS.index(name) if name in _LOADER_PARAMETERS else len(call.args)
        if n < len(call.args):
            return call.args[n]
        for keyword in call.keywords:
            if keyword.arg is None and (value := self._from_dict(keyword.value, name)) is not None:
                return value
        return None

    def name(self, call: ast.Call) -> str:
        """Return the variable that a loader is assigned to, or the function that returns it."""
        match self.script.statement(call):
            case ast.Assign(targets=[target]):
                return last_name(target)
            case ast.Return():
                return getattr(self.script.function(call), "name", "")
        return ""

    def is_for_tests(self, call: ast.Call) -> bool:
        """Return whether a loader is for validation or tests by its name."""
        return bool(_FOR_TESTS.search(self.name(call)))

    def value(self, call: ast.Call, name: str, default: Constant) -> Constant:
        """Return the value of a setting, if it is constant; the default where it is not set."""
        setting = self.setting(call, name)
        if setting is None:
            is_open = any(keyword.arg is None for keyword in call.keywords)
            return UNKNOWN if is_open and name != "drop_last" else default
        return self.constants.value(setting)

    def last_may_be_short(self, loader: ast.AST) -> bool:
        """Return whether the last batch may have fewer rows than the others."""
        creations = self.creations(loader)
        if not creations:
            origins = self.values.origins(loader)
            is_parameter = any(isinstance(origin.node, ast.arg) for origin in origins)
            return not self._names_drop_last and not is_parameter
        return any(self._may_be_short(call) for call in creations)

    def batch_sizes(self) -> set[int]:
        """Return the known batch sizes of all loaders."""
        settings = (self.setting(call, "batch_size") for call in self.values.calls("DataLoader"))
        sizes = [self.constants.value_or_default(node) for node in settings if node is not None]
        return {size for size in sizes if isinstance(size, int)}

    def has_several_rows(self, loader: ast.AST) -> bool:
        """Return whether the batches are known to be of more than one row, the default."""
        sizes = [self.value(call, "batch_size", 1) for call in self.creations(loader)]
        return bool(sizes) and 1 not in sizes

    def has_sampler(self, loader: ast.AST) -> bool:
        """Return whether a loader has a sampler, and so may yield only a part of its dataset."""
        samplers = [self.setting(call, "sampler") for call in self.creations(loader)]
        return any(node is not None and self.constants.value(node) is not None for node in samplers)

    def divides_evenly(self, call: ast.Call) -> bool:
        """Return whether all batches are full, because the size of the dataset is known."""
        size = self.value(call, "batch_size", 1)
        dataset = self.setting(call, "dataset")
        origins = self.values.origins(dataset) if dataset is not None else []
        counts = {self._rows_of(origin.node, origin.steps) for origin in origins}
        rows = counts.pop() if len(counts) == 1 else None
        return size == 1 or (isinstance(size, int) and rows is not None and rows % size == 0)

    def is_training_part(self, created: ast.Call) -> bool | None:
        """Return whether a dataset such as MNIST has the training images; None if unknown."""
        train = train_flag(created)
        flag = True if train is None else self.constants.value(train)
        return flag if isinstance(flag, bool) else None

    def _may_be_short(self, call: ast.Call) -> bool:
        if self.setting(call, "batch_sampler") is not None:
            return False
        drop = self.setting(call, "drop_last")
        if drop is not None and self.constants.value(drop) is not False:
            return False
        is_open = any(keyword.arg is None for keyword in call.keywords)
        if drop is None and self._names_drop_last and is_open:
            return False
        return self.value(call, "batch_size", 1) is not None and not self.divides_evenly(call)

    def _rows_of(self, node: ast.AST, steps: tuple[object, ...]) -> int | None:
        """The number of rows of an opened dataset or a part of it, if known."""
        if not isinstance(node, ast.Call):
            return None
        name = last_name(node.func)
        if name == "random_split" and len(node.args) > 1 and steps and isinstance(steps[0], int):
            sizes = node.args[1]
            parts = sizes.elts if isinstance(sizes, (ast.List, ast.Tuple)) else []
            return self._number(parts[steps[0]]) if steps[0] < len(parts) else None
        if steps:
            return None
        if name in DATASET_SIZES:
            flag = self.is_training_part(node)
            return DATASET_SIZES[name][0 if flag else 1] if flag is not None else None
        if name == "FakeData":
            size = keyword_value(node, "size") or (node.args[0] if node.args else None)
            return 1000 if size is None else self._number(size)
        if name == "TensorDataset" and node.args:
            return self._first_dimension(node.args[0])
        return None

    def _first_dimension(self, tensor: ast.AST) -> int | None:
        """The rows of a tensor created as `torch.randn(1024, ...)`."""
        for origin in self.values.origins(tensor):
            node = origin.node
            if not isinstance(node, ast.Call) or origin.steps:
                continue
            if last_name(node.func) in _TENSOR_CREATORS:
                sizes = [size for size in node.args if last_name(node.func) != "randint"]
                first = sizes[0] if sizes else None
                if isinstance(first, (ast.Tuple, ast.List)) and first.elts:
                    first = first.elts[0]
                return self._number(first) if first is not None else None
        return None

    def _number(self, expression: ast.AST) -> int | None:
        value = self.constants.value(expression)
        return value if isinstance(value, int) else None

    def _from_dict(self, expression: ast.expr, name: str) -> ast.expr | None:
        """The value that `**settings` contains under a name, where the dicts are literals."""
        updates = [
            call.args[0]
            for call in self.values.calls("update")
            if (owner := call_owner(call)) is not None and call.args
            if last_name(owner) == last_name(expression)
        ]
        values = (self._from_literal(item, name) for item in (expression, *updates))
        return next((value for value in values if value is not None), None)

    def _from_literal(self, expression: ast.expr, name: str) -> ast.expr | None:
        """The value that a literal dict contains under a name."""
        for origin in self.values.origins(expression):
            node = origin.node
            if isinstance(node, ast.Dict):
                for key, value in zip(node.keys, node.values, strict=True):
                    if isinstance(key, ast.Constant) and key.value == name:
                        return value
            if isinstance(node, ast.Call) and last_name(node.func) == "dict":
                argument = keyword_value(node, name)
                if argument is not None:
                    return argument
        return None


def train_flag(created: ast.Call) -> ast.expr | None:
    """Return the argument of a dataset such as MNIST that chooses its part; None is training."""
    return keyword_value(created, "train") or next(iter(created.args[1:2]), None)
