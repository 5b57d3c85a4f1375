"""What a value is: a network, a loss, a tensor, a loader; UNKNOWN if that is not clear."""

import ast
import re

from onsight_lint.calls import last_name
from onsight_lint.scopes import EACH
from onsight_lint.script import Script
from onsight_lint.uses import Uses
from onsight_lint.values import Origin, Values
from onsight_lint.vocabulary import (
    CONTAINERS,
    LOADER_NAME,
    LOSS_NAME,
    MODULES,
    NETWORK_PATHS,
    NUMBERS,
    OWN_DATA,
    TENSOR_FUNCTIONS,
    TENSOR_LOSSES,
    WEIGHTED,
    Kind,
)

_DEEPEST = 20  # nested expressions; what is deeper is unknown


class Kinds:
    """Determines the kinds of expressions, and remembers them."""

    def __init__(self, script: Script, values: Values) -> None:
        self.script, self.values = script, values
        self._known: dict[ast.AST, Kind] = {}
        self._uses = Uses(script)
        self._networks: dict[ast.ClassDef, bool] = {}
        self._depth = 0

    def kind(self, expression: ast.AST) -> Kind:
        """The kind of an expression, if all its origins of known kind agree."""
        if expression not in self._known:
            if self._depth > _DEEPEST:
                return Kind.UNKNOWN
            self._known[expression] = Kind.UNKNOWN  # for expressions that lead back to themselves
            self._depth += 1
            self._known[expression] = self._kind(expression)
            self._depth -= 1
        return self._known[expression]

    def all(self, expression: ast.AST) -> set[Kind]:
        """The kinds of all origins of an expression."""
        return {self._of_origin(origin) for origin in self.values.origins(expression)}

    def is_module_class(self, owner: ast.ClassDef) -> bool:
        """Whether a class of these files is a torch module."""
        for one in self.values.lineage(owner):
            for base in one.bases:
                path = self.script.path_of(base)
                if path.startswith(("torch.nn.", *NETWORK_PATHS)):
                    return True
                if path.endswith(("LightningModule", ".Module", "PreTrainedModel")):
                    return True
        return False

    def comes_from_batch(self, target: ast.Name, value: ast.expr) -> bool:
        """Whether a name is assigned a part of a loader's batch."""
        home = self.script.scope(target)
        bindings = [one for one in home.lookup(target) if one.value is value]
        origins = [one for b in bindings for one in self.values.origins(value, b.steps)]
        return bool(origins) and all(
            one.steps[:1] == (EACH,) and len(one.steps) == 2 and self._of_origin(one) is Kind.TENSOR
            for one in origins
        )

    def has_weights(self, node: ast.AST) -> bool:
        """Whether a piece of code names layers with weights."""
        inside = (one for one in ast.walk(node) if isinstance(one, (ast.Name, ast.Attribute)))
        return any(WEIGHTED.match(last_name(one)) for one in inside)

    def uses(self, expression: ast.AST) -> set[str]:
        """The methods and attributes that a name or `self.name` is used with in its scope."""
        return self._uses.of(expression)

    def _kind(self, expression: ast.AST) -> Kind:
        known = self.all(expression) - {Kind.UNKNOWN}
        if len(known) == 1:
            return known.pop()
        return Kind.UNKNOWN if known else self._uses.kind(expression)

    def _of_origin(self, origin: Origin) -> Kind:
        node, steps = origin.node, origin.steps
        whole = self._whole(node)
        if not steps:
            return whole
        if whole is Kind.LOADER and steps[0] == EACH:
            return Kind.BATCH if len(steps) == 1 else Kind.TENSOR
        if whole is Kind.BATCH:
            return Kind.TENSOR
        if whole is Kind.TENSOR and not _is_output(node, self):
            return Kind.TENSOR
        return Kind.UNKNOWN

    def _whole(self, node: ast.AST) -> Kind:
        match node:
            case ast.Constant() | ast.JoinedStr() | ast.Dict() | ast.List() | ast.Tuple():
                return Kind.OTHER
            case ast.Call():
                return self._of_call(node)
            case ast.BinOp(left=left, right=right):
                return self._of_parts(left, right)
            case ast.UnaryOp(operand=operand):
                return self._of_parts(operand)
            case ast.Compare(left=left, comparators=others):
                return self._of_parts(left, *others)
            case ast.Subscript(value=value):
                if re.search(r"loaders$", last_name(value)):
                    return Kind.LOADER
                found = self.kind(value)
                return Kind.TENSOR if found in (Kind.TENSOR, Kind.BATCH) else Kind.UNKNOWN
            case ast.Attribute(value=value, attr=name):
                return self._of_attribute(node, value, name)
            case ast.arg():
                return self._annotated(node) or self._uses.kind(node)
            case ast.Name():
                return self._uses.kind(node)
        return Kind.UNKNOWN

    def _of_parts(self, *parts: ast.AST) -> Kind:
        return Kind.TENSOR if Kind.TENSOR in map(self.kind, parts) else Kind.UNKNOWN

    def _of_attribute(self, node: ast.Attribute, value: ast.expr, name: str) -> Kind:
        owner = Kind.UNKNOWN if self.script.path_of(node) else self.kind(value)
        if owner is Kind.TENSOR and name in ("data", "grad", "T", "mT"):
            return Kind.TENSOR
        if owner is Kind.LOADER and name == "dataset":
            return Kind.DATASET
        if LOADER_NAME.search(name) and owner is Kind.UNKNOWN:
            return Kind.LOADER
        return self._uses.kind(node)

    def _of_call(self, call: ast.Call) -> Kind:
        defined = self.script.definition(call.func)
        if isinstance(defined, ast.ClassDef):
            return self._of_class(defined)
        path = self.script.path_of(call.func)
        if "." in path:
            return self._of_path(call, path)
        if isinstance(call.func, ast.Attribute):
            return self._of_method(call.func)
        if defined is None and self.kind(call.func) in MODULES:
            return Kind.TENSOR
        return self._by_path_of_class(last_name(call.func)) if path else Kind.UNKNOWN

    def _of_class(self, owner: ast.ClassDef) -> Kind:
        if self.is_module_class(owner):
            if LOSS_NAME.search(owner.name):
                return Kind.LOSS
            return Kind.NETWORK if self._is_network(owner) else Kind.LAYER
        paths = [
            self.script.path_of(base) for one in self.values.lineage(owner) for base in one.bases
        ]
        kinds = {self._by_path_of_class(path) for path in paths if path} - {Kind.UNKNOWN}
        return kinds.pop() if len(kinds) == 1 else Kind.OTHER

    def _is_network(self, owner: ast.ClassDef) -> bool:
        """Whether a module class has weights, its own or those of modules that it creates."""
        if owner not in self._networks:
            self._networks[owner] = False  # for classes that create themselves
            line = self.values.lineage(owner)
            self._networks[owner] = any(self.has_weights(one) for one in line) or any(
                isinstance(node, ast.Call) and self._makes_network(node, owner)
                for one in line
                for node in ast.walk(one)
            )
        return self._networks[owner]

    def _makes_network(self, call: ast.Call, owner: ast.ClassDef) -> bool:
        defined = self.script.definition(call.func)
        if isinstance(defined, ast.ClassDef):
            other = defined is not owner and self.is_module_class(defined)
            return other and self._of_call(call) is Kind.NETWORK
        return self.script.path_of(call.func).startswith(NETWORK_PATHS)

    def _of_path(self, call: ast.Call, path: str) -> Kind:
        name = path.rpartition(".")[2]
        if TENSOR_LOSSES.match(path) or path.startswith("torch.nn.functional."):
            return Kind.TENSOR
        if path.startswith(NETWORK_PATHS):
            return Kind.NETWORK
        if path.startswith("torch.nn.") and name[0].isupper():
            return self._of_layer(call, name)
        if path.startswith("torchmetrics") and name[0].isupper():
            return Kind.LAYER
        if path == f"torch.{name}" and name in TENSOR_FUNCTIONS:
            return Kind.TENSOR
        if path.startswith(OWN_DATA):
            return Kind.OTHER
        if path == "timm.data.create_loader":
            return Kind.LOADER
        return self._by_path_of_class(path)

    def _of_layer(self, call: ast.Call, name: str) -> Kind:
        if name in ("Parameter", "UninitializedParameter"):
            return Kind.OTHER
        if name.endswith("Loss"):
            return Kind.LOSS
        if name in ("DataParallel", "DistributedDataParallel"):
            return Kind.NETWORK
        if name == "Sequential":
            named = any(isinstance(one, (ast.Name, ast.Starred)) for one in call.args)
            return Kind.NETWORK if named or self.has_weights(call) else Kind.LAYER
        return Kind.NETWORK if name in CONTAINERS else Kind.LAYER

    def _by_path_of_class(self, path: str) -> Kind:
        name = path.rpartition(".")[2]
        if path.startswith(OWN_DATA):
            return Kind.OTHER
        if name.endswith("DataLoader"):
            return Kind.LOADER
        if path.startswith("torchvision.datasets.") or name in ("Subset", "TensorDataset"):
            return Kind.DATASET
        if name.endswith("Dataset") or name in ("ImageFolder", "random_split"):
            return Kind.DATASET
        if path.startswith("torch.optim.") or name.startswith("create_optimizer"):
            return Kind.OTHER if ".lr_scheduler." in path else Kind.OPTIMIZER
        if re.search(r"[a-z]Loss$|CrossEntropy$", name) and name[0].isupper():
            return Kind.LOSS
        return Kind.UNKNOWN

    def _of_method(self, function: ast.Attribute) -> Kind:
        owner = self.kind(function.value)
        if owner is Kind.TENSOR:
            return Kind.OTHER if function.attr in NUMBERS else Kind.TENSOR
        if self.kind(function) in MODULES:
            return Kind.TENSOR
        if owner in MODULES and function.attr in ("forward", "__call__"):
            return Kind.TENSOR
        return Kind.UNKNOWN

    def _annotated(self, node: ast.arg) -> Kind | None:
        note = node.annotation
        if note is None:
            return None
        if isinstance(note, ast.Constant) and isinstance(note.value, str):
            path = note.value
        else:
            path = self.script.path_of(note)
        name = path.rpartition(".")[2]
        if path in ("torch.nn.Module", "nn.Module"):
            loss = LOSS_NAME.search(node.arg)
            return Kind.LOSS if loss else Kind.NETWORK
        if name in ("Tensor", "FloatTensor", "LongTensor"):
            return Kind.TENSOR
        if path in ("int", "float", "str", "bool", "dict", "list"):
            return Kind.OTHER
        found = self._by_path_of_class(path)
        return None if found is Kind.UNKNOWN else found


def _is_output(node: ast.AST, kinds: Kinds) -> bool:
    """Whether a node is the output of a network, which may be a tuple or dict of tensors."""
    return isinstance(node, ast.Call) and kinds.kind(node.func) in (Kind.NETWORK, Kind.LAYER)
