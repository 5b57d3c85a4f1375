"""Classify values as network, loss, tensor, loader and so on, or UNKNOWN if uncertain."""

import ast
import re
from collections import defaultdict
from enum import Enum
from typing import TypeGuard

from onsight_lint.scopes import EACH
from onsight_lint.script import Script
from onsight_lint.syntax import called_object, last_name, word_set
from onsight_lint.values import Origin, Values

_MAX_DEPTH = 20  # levels of nested expressions; deeper ones are unknown

_NETWORK_PATHS = (
    "torchvision.models.",
    "timm.create_model",
    "timm.models.",
    "torch.hub.load",
    "torch.jit.load",
    "transformers.",
    "segmentation_models_pytorch.",
    "efficientnet_pytorch.",
)
_GRAPH_LIBRARIES = ("torch_geometric", "dgl")  # their loaders yield graphs
_CONTAINERS = word_set("ModuleList ModuleDict Linear LSTM GRU RNN Transformer")
_LAYERS_WITH_WEIGHTS = re.compile(
    r"(Lazy)?(Conv|ConvTranspose|BatchNorm)[123]d$|(Lazy)?Linear$|Bilinear$|Embedding$"
    r"|LSTM|GRU|RNN|Transformer"
)
_TENSOR_FUNCTIONS = word_set(
    "Tensor FloatTensor LongTensor ByteTensor tensor as_tensor from_numpy zeros ones empty full "
    "rand randn randint randperm arange linspace eye zeros_like ones_like rand_like randn_like "
    "full_like empty_like cat concat stack hstack vstack where matmul mm bmm einsum softmax "
    "log_softmax sigmoid relu tanh exp log sqrt abs sum mean std var argmax argmin flatten "
    "squeeze unsqueeze reshape permute transpose clamp clip roll flip masked_select gather "
    "index_select one_hot outer dot norm tril triu cumsum normal bernoulli multinomial vmap "
    "square pow maximum minimum"
)
_NUMBER_METHODS = word_set(  # methods of tensors that do not return a tensor
    "item tolist numpy size dim numel ndimension get_device is_contiguous data_ptr stride "
    "element_size type backward is_cuda register_hook"
)
_LOSS_NAME = re.compile(r"criterion|(^|_|\.)loss(_?(fn|func|function))?$|[a-z]Loss$|Criterion$")
_LOADER_NAME = re.compile(r"loader(\d*$|_(train|val|valid|test|eval)$)|(^|_)dl$")
_NETWORK_NAME = re.compile(r"^(self\.)?(model|net|network|.*_(model|net))$")
_NETWORK_ATTRIBUTES = word_set("parameters named_parameters named_modules load_state_dict")
OPTIMIZER_ATTRIBUTES = word_set("step zero_grad param_groups")
LOSS_FUNCTIONS = re.compile(r"^torch\.nn\.functional\.(\w+_loss|\w*cross_entropy\w*|kl_div)$")


class Kind(Enum):
    """The kinds of values that the rules distinguish."""

    NETWORK = "a module with layers"
    LOSS = "a module or function that computes a loss"
    LAYER = "any other module"
    TENSOR = "a tensor"
    LOADER = "a DataLoader"
    BATCH = "an item that a DataLoader yields"
    DATASET = "a dataset"
    OPTIMIZER = "an optimizer"
    OTHER = "anything else"
    UNKNOWN = "unknown"


_MODULES = frozenset({Kind.NETWORK, Kind.LOSS, Kind.LAYER})


class Kinds:
    """Determines the kinds of expressions and caches them."""

    def __init__(self, script: Script, values: Values) -> None:
        self.script, self.values = script, values
        self._kinds: dict[ast.AST, Kind] = {}
        self._uses = _NameUses(script)
        self._networks: dict[ast.ClassDef, bool] = {}
        self._depth = 0

    def kind(self, expression: ast.AST) -> Kind:
        """Return the kind of an expression, if all its origins of known kind agree."""
        if expression not in self._kinds:
            if self._depth > _MAX_DEPTH:
                return Kind.UNKNOWN
            self._kinds[expression] = Kind.UNKNOWN  # ends the search for recursive expressions
            self._depth += 1
            self._kinds[expression] = self._find_kind(expression)
            self._depth -= 1
        return self._kinds[expression]

    def all(self, expression: ast.AST) -> set[Kind]:
        """Return the kinds of all origins of an expression."""
        return {self._of_origin(origin) for origin in self.values.origins(expression)}

    def is_module_class(self, node: ast.AST | None) -> TypeGuard[ast.ClassDef]:
        """Return whether a node is a class of the script that is a torch module."""
        return isinstance(node, ast.ClassDef) and any(
            path.startswith(("torch.nn.", *_NETWORK_PATHS))
            or path.endswith(("LightningModule", ".Module", "PreTrainedModel"))
            for path in self.values.base_paths(node)
        )

    def comes_from_batch(self, target: ast.Name, value: ast.expr) -> bool:
        """Return whether a name is assigned a part of a loader's batch."""
        home = self.script.scope(target)
        bindings = [binding for binding in home.lookup(target) if binding.value is value]
        origins = [item for b in bindings for item in self.values.origins(value, b.steps)]
        return bool(origins) and all(
            origin.steps[:1] == (EACH,)
            and len(origin.steps) == 2
            and self._of_origin(origin) is Kind.TENSOR
            for origin in origins
        )

    def uses(self, expression: ast.AST) -> set[str]:
        """Return the attributes that a name or `self.name` is used with in its scope."""
        return self._uses.attributes(expression)

    def _find_kind(self, expression: ast.AST) -> Kind:
        known = self.all(expression) - {Kind.UNKNOWN}
        if len(known) == 1:
            return known.pop()
        return Kind.UNKNOWN if known else self._uses.kind(expression)

    def _of_origin(self, origin: Origin) -> Kind:
        node, steps = origin.node, origin.steps
        whole = self._of_node(node)
        if not steps:
            return whole
        if whole is Kind.LOADER and steps[0] == EACH:
            return Kind.BATCH if len(steps) == 1 else Kind.TENSOR
        if whole is Kind.BATCH:
            return Kind.TENSOR
        if whole is Kind.TENSOR and not self._is_output(node):
            return Kind.TENSOR
        return Kind.UNKNOWN

    def _is_output(self, node: ast.AST) -> bool:
        """Return whether a node is the output of a network, perhaps a tuple or dict of tensors."""
        return isinstance(node, ast.Call) and self.kind(node.func) in (Kind.NETWORK, Kind.LAYER)

    def _of_node(self, node: ast.AST) -> Kind:
        match node:
            case ast.Constant() | ast.JoinedStr() | ast.Dict() | ast.List() | ast.Tuple():
                return Kind.OTHER
            case ast.Call():
                return self._of_call(node)
            case ast.BinOp(left=left, right=right):
                return self._of_operands(left, right)
            case ast.UnaryOp(operand=operand):
                return self._of_operands(operand)
            case ast.Compare(left=left, comparators=others):
                return self._of_operands(left, *others)
            case ast.Subscript(value=value):
                if re.search(r"loaders$", last_name(value)):
                    return Kind.LOADER
                kind = self.kind(value)
                return Kind.TENSOR if kind in (Kind.TENSOR, Kind.BATCH) else Kind.UNKNOWN
            case ast.Attribute(value=value, attr=name):
                return self._of_attribute(node, value, name)
            case ast.arg():
                return self._annotated(node) or self._uses.kind(node)
            case ast.Name():
                return self._uses.kind(node)
        return Kind.UNKNOWN

    def _of_operands(self, *operands: ast.AST) -> Kind:
        return Kind.TENSOR if Kind.TENSOR in map(self.kind, operands) else Kind.UNKNOWN

    def _of_attribute(self, node: ast.Attribute, value: ast.expr, name: str) -> Kind:
        owner = Kind.UNKNOWN if self.script.path_of(node) else self.kind(value)
        if owner is Kind.TENSOR and name in ("data", "grad", "T", "mT"):
            return Kind.TENSOR
        if owner is Kind.LOADER and name == "dataset":
            return Kind.DATASET
        if _LOADER_NAME.search(name) and owner is Kind.UNKNOWN:
            return Kind.LOADER
        return self._uses.kind(node)

    def _of_call(self, call: ast.Call) -> Kind:
        definition = self.script.definition(call.func)
        if isinstance(definition, ast.ClassDef):
            return self._of_class(definition)
        path = self.script.path_of(call.func)
        if "." in path:
            return self._of_path(call, path)
        if isinstance(call.func, ast.Attribute):
            return self._of_method(call.func)
        if definition is None and self.kind(call.func) in _MODULES:
            return Kind.TENSOR
        return _kind_of_class_path(last_name(call.func)) if path else Kind.UNKNOWN

    def _of_class(self, owner: ast.ClassDef) -> Kind:
        if self.is_module_class(owner):
            if _LOSS_NAME.search(owner.name):
                return Kind.LOSS
            return Kind.NETWORK if self._is_network(owner) else Kind.LAYER
        kinds = {*map(_kind_of_class_path, self.values.base_paths(owner))} - {Kind.UNKNOWN}
        return kinds.pop() if len(kinds) == 1 else Kind.OTHER

    def _is_network(self, owner: ast.ClassDef) -> bool:
        """Return whether a module class, or a module that it creates, has weights."""
        if owner not in self._networks:
            self._networks[owner] = False  # ends the search for recursive classes
            lineage = self.values.lineage(owner)
            self._networks[owner] = any(map(_names_layers_with_weights, lineage)) or any(
                isinstance(node, ast.Call) and self._creates_network(node, owner)
                for ancestor in lineage
                for node in ast.walk(ancestor)
            )
        return self._networks[owner]

    def _creates_network(self, call: ast.Call, owner: ast.ClassDef) -> bool:
        definition = self.script.definition(call.func)
        if isinstance(definition, ast.ClassDef):
            is_other = definition is not owner and self.is_module_class(definition)
            return is_other and self._of_call(call) is Kind.NETWORK
        return self.script.path_of(call.func).startswith(_NETWORK_PATHS)

    def _of_path(self, call: ast.Call, path: str) -> Kind:
        name = path.rpartition(".")[2]
        if path.startswith("torch.nn.functional."):
            return Kind.TENSOR
        if path.startswith(_NETWORK_PATHS):
            return Kind.NETWORK
        if path.startswith("torch.nn.") and name[0].isupper():
            return self._of_layer(call, name)
        if path.startswith("torchmetrics") and name[0].isupper():
            return Kind.LAYER
        if path == f"torch.{name}" and name in _TENSOR_FUNCTIONS:
            return Kind.TENSOR
        return _kind_of_class_path(path)

    def _of_layer(self, call: ast.Call, name: str) -> Kind:
        """The kind of `nn.Name(...)`."""
        if name in ("Parameter", "UninitializedParameter"):
            return Kind.OTHER
        if name.endswith("Loss"):
            return Kind.LOSS
        if name in ("DataParallel", "DistributedDataParallel"):
            return Kind.NETWORK
        if name == "Sequential":
            is_open = any(isinstance(layer, (ast.Name, ast.Starred)) for layer in call.args)
            return Kind.NETWORK if is_open or _names_layers_with_weights(call) else Kind.LAYER
        return Kind.NETWORK if name in _CONTAINERS else Kind.LAYER

    def _of_method(self, function: ast.Attribute) -> Kind:
        """The kind of what a method returns."""
        owner = self.kind(function.value)
        if owner is Kind.TENSOR:
            return Kind.OTHER if function.attr in _NUMBER_METHODS else Kind.TENSOR
        is_forward = owner in _MODULES and function.attr in ("forward", "__call__")
        is_module = is_forward or self.kind(function) in _MODULES
        return Kind.TENSOR if is_module else Kind.UNKNOWN

    def _annotated(self, node: ast.arg) -> Kind | None:
        """The kind by a parameter's type annotation."""
        note = node.annotation
        if note is None:
            return None
        if isinstance(note, ast.Constant) and isinstance(note.value, str):
            path = note.value
        else:
            path = self.script.path_of(note)
        if path in ("torch.nn.Module", "nn.Module"):
            return Kind.LOSS if _LOSS_NAME.search(node.arg) else Kind.NETWORK
        if path.rpartition(".")[2] in ("Tensor", "FloatTensor", "LongTensor"):
            return Kind.TENSOR
        if path in ("int", "float", "str", "bool", "dict", "list"):
            return Kind.OTHER
        kind = _kind_of_class_path(path)
        return None if kind is Kind.UNKNOWN else kind


class _NameUses:
    """The attributes that each name in a script is used with, and the names that are called."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self._attributes: dict[tuple[ast.AST, str], set[str]] = defaultdict(set)
        for node in script.nodes(ast.Attribute):
            key = self._key(node.value)
            if key[1]:
                self._attributes[key].add(node.attr)
        self._called = {self._key(called_object(call)) for call in script.nodes(ast.Call)}

    def attributes(self, expression: ast.AST) -> set[str]:
        """Return the attributes that a name or `self.name` is used with in its scope."""
        return self._attributes.get(self._key(expression), set())

    def kind(self, expression: ast.AST) -> Kind:
        """Return the kind that a name is used as, or that the name itself suggests."""
        key = self._key(expression)
        name, used = key[1], self._attributes.get(key, set())
        if not name:
            return Kind.UNKNOWN
        if _LOSS_NAME.search(name) and key in self._called:
            return Kind.LOSS
        if _LOADER_NAME.search(name) and not used & {"append", "items", "keys", "values"}:
            return Kind.LOADER
        if used & _NETWORK_ATTRIBUTES and not (
            used & OPTIMIZER_ATTRIBUTES and key not in self._called
        ):
            return Kind.NETWORK if "step" not in used else Kind.UNKNOWN
        if key in self._called and (used & {"eval", "state_dict"} or _NETWORK_NAME.match(name)):
            return Kind.NETWORK
        if re.search(r"optim", name) or {"zero_grad", "step"} <= used:
            return Kind.OPTIMIZER
        return Kind.TENSOR if "backward" in used else Kind.UNKNOWN

    def _key(self, expression: ast.AST) -> tuple[ast.AST, str]:
        """The scope of a name or `self.name`, and its code; "" for anything else."""
        if isinstance(expression, ast.arg):
            return self.script.parent(self.script.parent(expression)), expression.arg
        if isinstance(expression, ast.Name):
            scopes = self.script.scope(expression)
            bindings = scopes.lookup(expression)
            node = bindings[0].node if bindings else self.script.source(expression).tree
            if isinstance(node, ast.arg):
                return self.script.parent(self.script.parent(node)), expression.id
            return scopes.scope(node) if bindings else node, expression.id
        match expression:
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                owner = self.script.enclosing_class(expression)
                if owner is not None:
                    return owner, f"self.{name}"
        return expression, ""


def _kind_of_class_path(path: str) -> Kind:
    """The kind of the instances of a class, by its full name or name alone."""
    name = path.rpartition(".")[2]
    if path.startswith(_GRAPH_LIBRARIES):
        return Kind.OTHER
    if name.endswith("DataLoader") or path == "timm.data.create_loader":
        return Kind.LOADER
    if name.endswith("Dataset") or name in ("Subset", "ImageFolder", "random_split"):
        return Kind.DATASET
    if path.startswith("torchvision.datasets."):
        return Kind.DATASET
    if path.startswith("torch.optim.") or name.startswith("create_optimizer"):
        return Kind.OTHER if ".lr_scheduler." in path else Kind.OPTIMIZER
    if re.search(r"[a-z]Loss$|CrossEntropy$", name) and name[0].isupper():
        return Kind.LOSS
    return Kind.UNKNOWN


def _names_layers_with_weights(code: ast.AST) -> bool:
    names = (node for node in ast.walk(code) if isinstance(node, (ast.Name, ast.Attribute)))
    return any(_LAYERS_WITH_WEIGHTS.match(last_name(name)) for name in names)
