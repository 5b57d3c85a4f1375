"""The vocabulary of torch: kinds of values, and the names that identify them."""

import re
from enum import Enum


def word_set(text: str) -> frozenset[str]:
    """The words of a string as a set."""
    return frozenset(text.split())


class Kind(Enum):
    """What matters here about a value."""

    NETWORK = "a module with layers"
    LOSS = "a module or function that computes a loss"
    LAYER = "any other module"
    TENSOR = "a tensor"
    LOADER = "a DataLoader"
    BATCH = "what a DataLoader yields"
    DATASET = "a dataset"
    OPTIMIZER = "an optimizer"
    OTHER = "anything else"
    UNKNOWN = "unknown"


# In every script that trains or evaluates:
LOOPS = r"[Ll]oader|dl\b|\.backward\(|\.eval\(\)|load_state_dict"

MODULES = frozenset({Kind.NETWORK, Kind.LOSS, Kind.LAYER})

NETWORK_PATHS = (
    "torchvision.models.",
    "timm.create_model",
    "timm.models.",
    "torch.hub.load",
    "torch.jit.load",
    "transformers.",
    "segmentation_models_pytorch.",
    "efficientnet_pytorch.",
)
CONTAINERS = word_set("Sequential ModuleList ModuleDict Linear LSTM GRU RNN Transformer")
WEIGHTED = re.compile(
    r"(Lazy)?(Conv|ConvTranspose|BatchNorm)[123]d$|(Lazy)?Linear$|Bilinear$|Embedding$"
    r"|LSTM|GRU|RNN|Transformer"
)
TENSOR_FUNCTIONS = word_set(
    "Tensor FloatTensor LongTensor ByteTensor tensor as_tensor from_numpy zeros ones empty full "
    "rand randn randint randperm arange linspace eye zeros_like ones_like rand_like randn_like "
    "full_like empty_like cat concat stack hstack vstack where matmul mm bmm einsum softmax "
    "log_softmax sigmoid relu tanh exp log sqrt abs sum mean std var argmax argmin flatten "
    "squeeze unsqueeze reshape permute transpose clamp clip roll flip masked_select gather "
    "index_select one_hot outer dot norm tril triu cumsum normal bernoulli multinomial vmap "
    "square pow maximum minimum"
)
NUMBERS = word_set(  # methods of tensors that do not return a tensor
    "item tolist numpy size dim numel ndimension get_device is_contiguous data_ptr stride "
    "element_size type backward is_cuda register_hook"
)
LOSS_NAME = re.compile(r"criterion|(^|_|\.)loss(_?(fn|func|function))?$|[a-z]Loss$|Criterion$")
LOADER_NAME = re.compile(r"loader(\d*$|_(train|val|valid|test|eval)$)|(^|_)dl$")
NETWORK_NAME = re.compile(r"^(self\.)?(model|net|network|.*_(model|net))$")
NETWORK_USES = frozenset({"parameters", "named_parameters", "named_modules", "load_state_dict"})
OPTIMIZER_USES = frozenset({"step", "zero_grad", "param_groups"})
OWN_DATA = ("torch_geometric", "dgl")  # their loaders yield graphs
TENSOR_LOSSES = re.compile(r"^torch\.nn\.functional\.(\w+_loss|\w*cross_entropy\w*|kl_div)$")
