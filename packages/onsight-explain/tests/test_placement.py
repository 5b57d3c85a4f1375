"""placement() names every planted mistake with the line that fixes it, and nothing else.

Tensors on the meta device replace those of a GPU; the line that a problem suggests is run and
must fix it.
"""

import copy
import functools
import json
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import prune

from onsight_explain import devices
from onsight_explain.errors import ExplainError, PlacementError
from onsight_explain.placement import problems
from onsight_explain.placement.placement import placement
from onsight_explain.placement.tensors import PlacedTensor, TensorRow

META = torch.device("meta")


@pytest.fixture(autouse=True)
def no_accelerator(monkeypatch):
    """Hide accelerators, so that the verdict does not depend on the machine."""
    monkeypatch.setattr(problems, "available_devices", lambda: ["cpu"])
    monkeypatch.setattr(torch.version, "cuda", "13.0")


class Net(nn.Module):
    """A small network with buffers: 4 -> 3 -> 2."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.ReLU())
        self.head = nn.Linear(3, 2)

    def forward(self, inputs):
        return self.head(self.body(inputs))


def meta_net():
    return Net().to(META)


def batch_on(device, images=5):
    return torch.zeros(images, 4, device=device), torch.zeros(images, dtype=int, device=device)


def fixed(problem, **names):
    """The names after running the line that fixes a problem."""
    scope = {"torch": torch, "functools": functools, "device": META, **names}
    exec(problem.fix, scope)
    return scope


def only(proof):
    (problem,) = proof.problems
    assert proof.verdict.startswith(problem.what)
    with pytest.raises(PlacementError) as raised:
        proof.check()
    assert str(raised.value) == f"{problem.what}. Write: {problem.fix}"
    return problem


def trained(net, optimizer, steps=1, loss=F.cross_entropy):
    for _ in range(steps):
        inputs, labels = torch.randn(6, 4), torch.arange(6) % 2
        optimizer.zero_grad()
        loss(net(inputs), labels).backward()
        optimizer.step()
    return inputs, labels


# ---- what is found ---------------------------------------------------------------------------


def test_every_tensor_of_an_ordinary_loop_has_its_row():
    net, loss = Net(), nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0]))
    optimizer = torch.optim.Adam(net.parameters())
    batch = trained(net, optimizer, loss=loss)
    proof = placement(model=net, loss=loss, optimizer=optimizer, batch=batch)
    rows = {row.name: row for row in proof.rows}
    for kind, named in (("parameter", net.named_parameters()), ("buffer", net.named_buffers())):
        expected = dict(named)
        found = {row.name: row for row in proof.rows if row.kind == kind}
        assert found.keys() == expected.keys()
        for name, tensor in expected.items():
            assert found[name].shape == tuple(tensor.shape)
            assert found[name].bytes == tensor.nbytes
            assert (found[name].device, f"torch.{found[name].dtype}") == ("cpu", str(tensor.dtype))
    assert rows["loss.weight"].kind == "loss weight"
    assert rows["loss.weight"].shape == (2,)
    assert rows["exp_avg of head.weight"].shape == (2, 3)
    states = {row.name for row in proof.rows if row.kind == "optimizer state"}
    names = [name for name, _ in net.named_parameters()]
    assert states == {f"{k} of {n}" for n in names for k in ("step", "exp_avg", "exp_avg_sq")}
    assert [rows[f"batch[{number}]"].dtype for number in (0, 1)] == ["float32", "int64"]
    numbers = sum(p.numel() for p in net.parameters())
    assert proof.verdict == (
        f"everything is on cpu: {numbers} parameters, 3 buffers, 1 loss tensor, "
        "18 optimizer tensors, 2 batch tensors"
    )
    assert proof.device == "cpu"
    assert proof.check() is proof


def test_facts_are_plain_values_and_the_table_adds_up_the_rows():
    net = meta_net().half()
    proof = placement(model=net, loss=nn.CrossEntropyLoss(torch.ones(2)), batch=batch_on(META))
    facts = json.loads(json.dumps(proof.facts()))
    assert facts["rows"][0] == {
        "kind": "parameter",
        "device": "meta",
        "dtype": "float16",
        "tensors": 6,
        "numbers": 29,
        "bytes": 58,
    }
    for name, value in (("tensors", len(proof.rows)), ("bytes", sum(r.bytes for r in proof.rows))):
        assert sum(row[name] for row in facts["rows"]) == value
    assert facts["problems"][0]["fix"] == "loss = loss.to(device)"
    text = str(proof)
    header, *lines = text.splitlines()
    assert header.split() == ["kind", "device", "dtype", "tensors", "numbers", "bytes"]
    assert lines[0].split() == ["parameter", "meta", "float16", "6", "29", "58"]
    assert len({len(line) for line in [header, *lines[: len(facts["rows"])]]}) == 1
    assert "  loss.weight is on cpu, but the model is on meta" in text
    assert "\n      loss = loss.to(device)\n" in text
    assert text.endswith(proof.verdict)


def test_tied_weights_count_once():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.inside, self.outside = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
            self.outside.weight = self.inside.weight

    proof = placement(model=Tied(), batch=[(shared := torch.ones(3)), shared])
    assert proof.verdict == "everything is on cpu: 16 parameters, 0 buffers, 1 batch tensor"


def test_a_placement_needs_something_to_look_at():
    with pytest.raises(TypeError, match="needs a model, loss, optimizer, metrics or batch"):
        placement()
    with pytest.raises(TypeError, match=r"model is a function; it must be a torch\.nn\.Module"):
        placement(model=lambda inputs: inputs)
    with pytest.raises(TypeError, match=r"optimizer is a dict_values|optimizer is a str"):
        placement(optimizer="sgd")
    assert issubclass(PlacementError, ExplainError)


# ---- losses ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loss", "name"),
    [
        (nn.CrossEntropyLoss(weight=torch.ones(2)), "loss.weight"),
        (nn.BCEWithLogitsLoss(pos_weight=torch.ones(2)), "loss.pos_weight"),
        (
            functools.partial(F.cross_entropy, weight=torch.ones(2), reduction="sum"),
            'loss.keywords["weight"]',
        ),
        (SimpleNamespace(alpha=torch.ones(2)), "loss.alpha"),
        ({"main": nn.NLLLoss(torch.ones(2)), "other": nn.MSELoss()}, 'loss["main"].weight'),
    ],
    ids=["buffer", "pos_weight", "partial", "object", "dict"],
)
def test_class_weights_left_on_the_cpu_are_named_and_fixed(loss, name):
    net, batch = meta_net(), batch_on(META)
    problem = only(placement(model=net, loss=loss, batch=batch))
    assert (problem.name, problem.kind) == (name, "loss weight")
    assert problem.what.startswith(f"{name} is on cpu, but the model is on meta")
    after = fixed(problem, loss=copy.deepcopy(loss))["loss"]
    assert placement(model=net, loss=after, batch=batch).check().problems == []
    if isinstance(after, functools.partial):
        assert after.keywords["reduction"] == "sum"
        assert problem.fix.startswith("loss = functools.partial(loss, weight=")


def test_weights_that_are_a_plain_attribute_of_a_loss_need_a_buffer():
    class Focal(nn.Module):
        def __init__(self, alpha, registered):
            super().__init__()
            if registered:
                self.register_buffer("alpha", alpha)
            else:
                self.alpha = alpha

    weights = torch.ones(2)
    problem = only(placement(model=meta_net(), loss=Focal(weights, False).to(META)))
    assert problem.fix == 'self.register_buffer("alpha", alpha)'
    assert "plain attribute of Focal" in problem.what
    placement(model=meta_net(), loss=Focal(weights, True).to(META)).check()


def test_a_loss_without_tensors_or_with_single_numbers_is_not_reported():
    class Margin(nn.Module):
        def __init__(self):
            super().__init__()
            self.margin = torch.tensor(
                0.5
            )  # torch combines a single number on the CPU with any device

    losses = [nn.CrossEntropyLoss(), nn.MSELoss(), F.cross_entropy, lambda a, b: a, Margin()]
    for loss in losses:
        placement(model=meta_net(), loss=loss, batch=batch_on(META)).check()
    assert (torch.ones(2, device=META) * torch.tensor(0.5)).is_meta


# ---- batches ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "names", "fix"),
    [
        (
            lambda tensor: (tensor, tensor.clone()),
            "batch[0] and batch[1]",
            "images, labels = images.to(device), labels.to(device)",
        ),
        (lambda tensor: tensor, "batch", "batch = batch.to(device)"),
        (
            lambda tensor: {"image": tensor, "label": tensor.clone()},
            'batch["image"] and batch["label"]',
            "batch = {name: tensor.to(device) for name, tensor in batch.items()}",
        ),
        (
            lambda tensor: [tensor.clone() for _ in range(3)],
            "batch[0], batch[1] and batch[2]",
            "batch = [tensor.to(device) for tensor in batch]",
        ),
        (
            lambda tensor: ({"image": [tensor]}, tensor.to(META)),
            'batch[0]["image"][0]',
            "images, labels = images.to(device), labels.to(device)",
        ),
    ],
    ids=["pair", "tensor", "dict", "list", "nested"],
)
def test_a_batch_whose_move_was_discarded_is_named(make, names, fix):
    batch = make(torch.ones(5, 4))
    if isinstance(batch, torch.Tensor):
        batch.to(META)  # the classic mistake: the result is discarded
    problem = only(placement(model=meta_net(), batch=batch))
    assert (problem.name, problem.kind, problem.fix) == (names, "batch", fix)
    assert ".to() returns a new tensor" in problem.what


def test_the_line_for_a_batch_fixes_it():
    net = meta_net()
    for batch in (torch.ones(5, 4), {"a": torch.ones(2)}, [torch.ones(2) for _ in range(3)]):
        problem = only(placement(model=net, batch=batch))
        placement(model=net, batch=fixed(problem, batch=batch)["batch"]).check()
    pair = batch_on("cpu")
    scope = fixed(only(placement(model=net, batch=pair)), images=pair[0], labels=pair[1])
    placement(model=net, batch=(scope["images"], scope["labels"])).check()


def test_misplaced_labels_are_named():
    images, labels = batch_on(META)[0], batch_on("cpu")[1]
    problem = only(placement(model=meta_net(), batch=(images, labels)))
    assert problem.name == "batch[1]"
    assert " is on cpu" in problem.what


def test_complex_nested_batches_are_not_reported():
    inner = SimpleNamespace(boxes=torch.ones(2, 4, device=META), names=["a", None])
    deep = {"a": [(torch.ones(1, device=META), {"b": inner})], 3: 7, "lam": torch.tensor(0.3)}
    deep["self"] = deep
    proof = placement(model=meta_net(), batch=deep).check()
    names = {row.name for row in proof.rows if row.kind == "batch"}
    assert names == {'batch["a"][0][0]', 'batch["a"][0][1]["b"].boxes', 'batch["lam"]'}


def test_if_all_but_the_model_was_moved_the_model_is_named():
    net = Net()
    loss = nn.CrossEntropyLoss(torch.ones(2, device=META))
    proof = placement(model=net, loss=loss, batch=batch_on(META))
    assert len(proof.problems) == 2
    assert {problem.fix for problem in proof.problems} == {"model = model.to(device)"}
    assert all("the model was not moved" in problem.what for problem in proof.problems)
    assert proof.verdict.endswith("(and 1 more problem)")
    after = fixed(proof.problems[0], model=net)["model"]
    placement(model=after, loss=loss, batch=batch_on(META)).check()


# ---- the model -------------------------------------------------------------------------------


def test_parameters_on_several_devices_are_named_with_where_they_are():
    net = meta_net()
    net.head = nn.Linear(3, 2)  # replaced after the model was moved
    problem = only(placement(model=net, batch=batch_on(META)))
    assert (problem.name, problem.kind) == ("head.weight and head.bias", "parameter")
    assert problem.what.startswith(
        "head.weight and head.bias are on cpu, but the others are on meta"
    )
    placement(model=fixed(problem, model=net)["model"], batch=batch_on(META)).check()


def test_the_accelerator_is_where_a_spread_model_belongs():
    net = Net()
    net.head.to(META)  # the smaller part of it
    optimizer = torch.optim.Adam(net.body.parameters())
    trained(net.body, optimizer, loss=lambda outputs, labels: outputs.sum())
    proof = placement(model=net, optimizer=optimizer, batch=batch_on(META))
    assert proof.device == "meta"
    kinds = [problem.kind for problem in proof.problems]
    assert kinds == ["parameter", "buffer"]  # not the state, which is with its parameters
    assert all(problem.fix == "model = model.to(device)" for problem in proof.problems)


def test_a_buffer_that_was_replaced_after_the_move_is_named():
    net = meta_net()
    net.body[1].running_mean = torch.zeros(3)
    problem = only(placement(model=net))
    assert (problem.name, problem.kind) == ("body.1.running_mean", "buffer")
    placement(model=fixed(problem, model=net)["model"]).check()


class Masked(nn.Module):
    """Has tensors where `.to()` does not find them."""

    def __init__(self, **kept):
        super().__init__()
        self.linear = nn.Linear(4, 2)
        vars(self).update(kept)


@pytest.mark.parametrize(
    ("kept", "name", "fix"),
    [
        ({"mask": torch.ones(4)}, "part.mask", 'self.register_buffer("mask", mask)'),
        (
            {"masks": [torch.ones(4, device=META), torch.ones(4)]},
            "part.masks[1]",
            'self.register_buffer("masks_1", masks[1])',
        ),
        (
            {"table": {"row": (torch.ones(4),)}},
            'part.table["row"][0]',
            'self.register_buffer("table_row_0", table["row"][0])',
        ),
        (
            {"weights": [nn.Parameter(torch.ones(4))]},
            "part.weights[0]",
            "self.weights = nn.ParameterList(weights)",
        ),
        (
            {"blocks": [nn.Linear(4, 4, bias=False)]},
            "part.blocks[0].weight",
            "self.blocks = nn.ModuleList(blocks)",
        ),
        (
            {"heads": {"a": nn.Linear(4, 4, bias=False)}},
            'part.heads["a"].weight',
            "self.heads = nn.ModuleDict(heads)",
        ),
    ],
    ids=["tensor", "list", "dict", "parameters", "modules", "module dict"],
)
def test_plain_attributes_of_a_module_are_left_behind_and_named(kept, name, fix):
    net = nn.ModuleDict({"part": Masked(**kept)}).to(META)
    problem = only(placement(model=net))
    assert (problem.name, problem.kind, problem.fix) == (name, "plain tensor attribute", fix)
    assert "Masked" in problem.what


def test_the_lines_for_plain_attributes_fix_them():
    class Mending(nn.Module):
        def __init__(self, line, **names):
            super().__init__()
            self.linear = nn.Linear(4, 2)
            exec(line, {"self": self, "nn": nn, **names})

    for name, value in (
        ("mask", torch.ones(4)),
        ("masks", [torch.ones(4)]),
        ("weights", [nn.Parameter(torch.ones(4))]),
        ("heads", {"a": nn.Linear(4, 4, bias=False)}),
    ):
        line = only(placement(model=Masked(**{name: value}).to(META))).fix
        proof = placement(model=Mending(line, **{name: copy.deepcopy(value)}).to(META)).check()
        assert len(proof.rows) == 3


def test_tensors_that_modules_manage_themselves_are_not_reported():
    recurrent = nn.LSTM(4, 3).to(META)  # also has its parameters in a plain list
    pruned = nn.Linear(4, 3)
    prune.l1_unstructured(pruned, "weight", 2)
    pruned.weight = pruned.weight.detach()  # recomputed before each forward pass
    listed_twice = Masked()
    listed_twice.again = [listed_twice.linear]
    cached = Masked()
    cached.features = cached.linear(torch.ones(1, 4))
    endless = Masked(around=[])
    endless.around.append(endless.around)
    related = nn.ModuleDict({"child": Masked(parents=[])})
    related["child"].parents.append(related)
    scaled = Masked(scale=torch.tensor(2.0))
    cached_by_device = Masked(biases={"cpu": torch.ones(2), "meta": torch.ones(2, device=META)})
    for net in (recurrent, pruned.to(META), listed_twice.to(META), cached.to(META)):
        placement(model=net).check()
    placement(model=scaled.to(META)).check()
    placement(model=endless).check()
    placement(model=related).check()
    placement(model=cached_by_device.to(META)).check()


@pytest.mark.parametrize("depth", [1, 2])
def test_wrappers_of_parallel_and_compiled_networks_make_no_difference(depth):
    class Wrapper(nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

    net = meta_net()
    net.mask = torch.ones(2)
    wrapped = net
    for _ in range(depth):
        wrapped = Wrapper(wrapped)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    proof = placement(model=wrapped, optimizer=optimizer)
    assert only(proof).name == "mask"
    assert {row.name for row in proof.rows} == {
        "mask",
        *(name for name, _ in net.named_parameters()),
        *(name for name, _ in net.named_buffers()),
    }
    plain = placement(model=torch.compile(Net()))
    assert "head.weight" in {row.name for row in plain.rows}
    halves = Wrapper(Net())
    halves.other = nn.Linear(2, 2)  # a network that happens to have a part of that name
    names = {row.name for row in placement(model=halves).rows}
    assert {"module.head.weight", "other.weight"} < names


def test_a_lazy_network_has_rows_before_its_first_batch():
    net = nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 2))
    optimizer = torch.optim.Adam(net.parameters())
    proof = placement(model=net, optimizer=optimizer).check()
    (row,) = [row for row in proof.rows if row.name == "0.weight"]
    assert (row.shape, row.bytes, row.numbers) == (None, 0, 0)
    net(torch.ones(5, 4))
    proof = placement(model=net, optimizer=optimizer).check()
    assert "23 parameters" in proof.verdict


# ---- optimizers ------------------------------------------------------------------------------


def with_state(net, kind=torch.optim.Adam, device="cpu", **options):
    """An optimizer of a network elsewhere, with its state as after a step on a device."""
    optimizer = kind(net.parameters(), **options)
    for parameter in net.parameters():
        average = torch.zeros(parameter.shape, device=device)
        optimizer.state[parameter] = {"step": torch.tensor(1.0), "exp_avg": average}
    return optimizer


def test_state_created_before_the_model_moved_is_named_and_moved():
    net = meta_net()
    optimizer = with_state(net)
    problem = only(placement(model=net, optimizer=optimizer))
    assert problem.kind == "optimizer state"
    assert problem.name.startswith("exp_avg of body.0.weight, exp_avg of body.0.bias")
    assert "are on cpu, but their parameters are on meta" in problem.what
    assert "step of" not in problem.name
    proof = placement(model=net, optimizer=fixed(problem, optimizer=optimizer)["optimizer"])
    assert proof.check().verdict == (
        "everything is on meta but 6 optimizer tensors on cpu, where torch accepts them: "
        "29 parameters, 3 buffers, 12 optimizer tensors"
    )


def test_step_counts_on_the_cpu_are_wrong_only_for_fused_and_capturable_optimizers():
    net = meta_net()
    assert placement(model=net, optimizer=with_state(net, device=META)).problems == []
    optimizer = with_state(net, device=META, capturable=True)
    problem = only(placement(model=net, optimizer=optimizer))
    assert problem.name.startswith("step of body.0.weight")
    placement(model=net, optimizer=fixed(problem, optimizer=optimizer)["optimizer"]).check()


def test_state_inside_lists_is_found():
    net = Net()
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=3)
    inputs, labels = torch.randn(6, 4), torch.arange(6) % 2

    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(net(inputs), labels)
        loss.backward()
        return loss

    optimizer.step(closure)
    proof = placement(model=net, optimizer=optimizer).check()
    assert "old_dirs[0] of body.0.weight" in {row.name for row in proof.rows}


def test_an_optimizer_of_another_model_is_named():
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.25)
    other = copy.deepcopy(net)
    problem = only(placement(model=other, optimizer=optimizer))
    assert problem.kind == "parameter"
    assert "body.0.weight" in problem.name
    assert "updates 6 tensors of something else and none of the model's" in problem.what
    assert problem.fix == "optimizer = torch.optim.SGD(model.parameters(), lr=0.25)"
    after = fixed(problem, model=other)["optimizer"]
    placement(model=other, optimizer=after).check()


def test_an_optimizer_created_before_a_move_that_replaced_the_parameters_is_named():
    net = Net()
    optimizer = torch.optim.Adam(net.parameters())
    net.to(META)  # torch cannot change these parameters in place, so it creates new ones
    problem = only(placement(model=net, optimizer=optimizer))
    assert "none of the model's" in problem.what
    placement(model=net, optimizer=fixed(problem, model=net)["optimizer"]).check()


def test_an_optimizer_created_before_the_head_was_replaced_is_named():
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters())
    net.head = nn.Linear(3, 7)
    problem = only(placement(model=net, optimizer=optimizer))
    assert problem.name == "head.weight and head.bias"
    assert "2 tensors of something else, but not head.weight and head.bias" in problem.what
    assert problem.fix == "optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)"


def test_parameters_in_no_optimizer_are_a_note():
    net = Net()
    proof = placement(model=net, optimizer=torch.optim.SGD(net.head.parameters(), lr=0.1))
    (note,) = proof.notes
    assert note == (
        "body.0.weight, body.0.bias, body.1.weight and body.1.bias require grad but are not in any "
        "optimizer, so they never change"
    )
    assert proof.check().verdict.endswith(f"; note: {note}")


def test_training_only_some_parameters_is_not_reported():
    frozen = Net()
    frozen.body.requires_grad_(False)
    heads = torch.optim.SGD(frozen.head.parameters(), lr=0.1)
    groups = Net()
    split = torch.optim.AdamW(
        [{"params": groups.body.parameters(), "lr": 1e-4}, {"params": groups.head.parameters()}]
    )
    two = Net()
    pair = [
        torch.optim.SGD(two.body.parameters(), lr=0.1),
        torch.optim.Adam(two.head.parameters()),
    ]
    learnable = nn.Module()
    learnable.centers = nn.Parameter(torch.ones(2))
    with_loss = Net()
    both = torch.optim.SGD([*with_loss.parameters(), learnable.centers], lr=0.1)
    partly = torch.optim.SGD([*with_loss.head.parameters(), learnable.centers], lr=0.1)
    for net, optimizer in ((frozen, heads), (groups, split), (two, pair), (with_loss, both)):
        loss = learnable if net is with_loss else None
        proof = placement(model=net, loss=loss, optimizer=optimizer).check()
        assert proof.notes == []
    assert placement(model=with_loss, loss=learnable, optimizer=partly).check().notes
    every = nn.ModuleList([Net(), Net()])  # one of two networks that share an optimizer
    placement(model=every[0], optimizer=torch.optim.SGD(every.parameters(), lr=0.1)).check()


def test_an_optimizer_alone_is_compared_with_its_own_parameters():
    net = meta_net()
    problem = only(placement(optimizer=with_state(net)))
    assert problem.name.startswith('exp_avg of param_groups[0]["params"][0]')
    placement(optimizer=with_state(net, device=META)).check()


def test_an_amp_loop_with_a_scaler_and_an_average_is_not_reported():
    net, loss = Net(), nn.CrossEntropyLoss()
    average = torch.optim.swa_utils.AveragedModel(net)
    optimizer = torch.optim.Adam(net.parameters())
    scaler = torch.amp.GradScaler("cpu")
    placement(model=net, optimizer=optimizer, loss=loss).check()  # before the first step too
    inputs, labels = torch.randn(6, 4), torch.arange(6) % 2
    for _ in range(2):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            value = loss(net(inputs), labels)
        scaler.scale(value).backward()
        scaler.step(optimizer)
        scaler.update()
        average.update_parameters(net)
    proof = placement(
        model=net, loss=loss, optimizer=optimizer, metrics=average, batch=(inputs, labels)
    )
    assert proof.check().notes == []
    kinds = {row.kind for row in proof.rows if row.name.startswith("metric.")}
    assert kinds == {"copy of the model"}
    away = Net().to(META)
    average = torch.optim.swa_utils.AveragedModel(away)
    assert average.n_averaged.device.type == "cpu"  # where torch counts updates
    placement(model=away, metrics=average).check()


# ---- metrics ---------------------------------------------------------------------------------


class Accuracy(nn.Module):
    """A metric like those of torchmetrics: plain attributes that its own `_apply` moves."""

    def __init__(self):
        super().__init__()
        self._defaults = {"correct": torch.tensor(0), "seen": []}
        self.correct = torch.tensor(0)
        self.seen = []

    @property
    def device(self):
        return self.correct.device

    def _apply(self, function, *arguments):
        self.correct = function(self.correct)
        return super()._apply(function, *arguments)


class Total:
    """A user's own metric."""

    def __init__(self, device="cpu"):
        self.total = torch.zeros(3, device=device)
        self._history = torch.zeros(9)  # private, and not used in a step

    def to(self, device):
        self.total = self.total.to(device)
        return self


class Listing:
    """A metric with a device, but without tensors before its first batch."""

    def __init__(self, device="cpu"):
        self.device = torch.device(device)

    def to(self, device):
        self.device = torch.device(device)
        return self


@pytest.mark.parametrize(
    ("kind", "name"),
    [(Accuracy, "metric.correct"), (Total, "metric.total"), (Listing, "metric.device")],
)
def test_a_metric_on_another_device_is_named_and_moved(kind, name):
    net = meta_net()
    problem = only(placement(model=net, metrics=kind()))
    assert (problem.name, problem.kind) == (name, "metric")
    assert problem.fix == "metric = metric.to(device)"
    placement(model=net, metrics=fixed(problem, metric=kind())["metric"]).check()


def test_one_of_several_metrics_is_named():
    net = meta_net()
    metrics = {"right": Total(META), "wrong": Total()}
    problem = only(placement(model=net, metrics=metrics))
    assert problem.name == 'metrics["wrong"].total'
    placement(model=net, metrics=fixed(problem, metrics=metrics)["metrics"]).check()
    problem = only(placement(model=net, metrics=[Total(META), Total()]))
    assert problem.name == "metrics[1].total"


def test_a_moving_average_left_behind_is_named():
    net = Net()
    average = SimpleNamespace(decay=0.9, model=copy.deepcopy(net))
    net.to(META)
    problem = only(placement(model=net, metrics={"average": average}))
    assert problem.kind == "copy of the model"
    assert problem.name.startswith('metrics["average"].model.body.0.weight')
    assert "9 more" not in problem.name
    placement(model=net, metrics=fixed(problem, metrics={"average": average})["metrics"]).check()


def test_metrics_without_tensors_are_not_reported():
    meter = SimpleNamespace(total=0.5, count=3, history=[0.1, "x"], device=3)
    placement(model=meta_net(), metrics=[meter, None, {"loss": 0.1}]).check()
    placement(model=meta_net(), metrics=Listing("meta")).check()


# ---- the machine -----------------------------------------------------------------------------


@pytest.fixture
def a_gpu(monkeypatch):
    monkeypatch.setattr(problems, "available_devices", devices.available_devices)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)


@pytest.fixture
def a_hidden_gpu(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(devices.Path, "exists", lambda path: "nvidia" in str(path))


def test_an_accelerator_that_nothing_uses_is_a_note(a_gpu):
    proof = placement(model=Net()).check()
    assert proof.notes == ["cuda:0 is available, but nothing here uses it"]
    assert proof.verdict.endswith("; note: cuda:0 is available, but nothing here uses it")
    assert placement(model=meta_net()).notes == []


def test_a_torch_that_cannot_see_the_gpu_is_a_problem(a_hidden_gpu):
    problem = only(placement(model=Net()))
    assert (problem.name, problem.kind) == ("torch", "torch build")
    assert "this torch is a CPU-only build" in problem.what
    assert problem.fix.startswith("pip install --force-reinstall torch")
    placement(model=meta_net()).check()


def test_a_torch_with_cuda_is_not_reported(a_hidden_gpu, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    placement(model=Net()).check()


@pytest.mark.parametrize(
    ("device", "home", "expected"),
    [
        ("cuda", "cuda:0", False),
        ("cuda:1", "cuda:0", True),
        ("cuda:1", "cuda:10", True),
        ("cpu", "cuda:0", True),
    ],
)
def test_a_device_without_a_number_matches_any_of_its_kind(device, home, expected):
    found = PlacedTensor(TensorRow("metric.device", "metric", None, "", device, 0), "")
    assert found.is_misplaced(home) == expected


def test_several_mistakes_are_all_reported():
    proof = placement(
        model=meta_net(), loss=nn.CrossEntropyLoss(torch.ones(2)), batch=batch_on("cpu")
    )
    assert [problem.kind for problem in proof.problems] == ["loss weight", "batch"]
    with pytest.raises(PlacementError) as raised:
        proof.check()
    assert len(str(raised.value).splitlines()) == 2
