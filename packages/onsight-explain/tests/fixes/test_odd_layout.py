"""Scripts of odd layout, fixed: the expected lines change, and no other byte of the file."""

import codecs

import pytest

NETWORK = {"bf16": True, "channels_last": True}
LOADER = {"workers": 0, "batch_factor": 16}
HEAD = "# Fixed by Onsight from train.py.\n"

CASES = {
    "two statements in a line": (
        NETWORK,
        """\
import torch
net = Net(); net.train()
for x, y in loader:
    opt.zero_grad(); out = net(x); loss = crit(out, y)  # forward
    loss.backward(); opt.step()
""",
        """\
import torch
net = Net(); net.train()
net.to(memory_format=torch.channels_last)
for x, y in loader:
    opt.zero_grad()
    x = x.to(memory_format=torch.channels_last)
    with torch.autocast(x.device.type, dtype=torch.bfloat16):
        out = net(x)
        loss = crit(out, y)  # forward
    loss.backward(); opt.step()
""",
    ),
    "tabs, and a loop in a function": (
        NETWORK,
        """\
import torch
def train(model, loader):
\tfor i, (x, y) in enumerate(tqdm(loader), 0):
\t\tout = model(
\t\t\tx,  # images
\t\t)

\t\t# the loss
\t\tloss = crit(out, y)
\t\tloss.backward()
""",
        """\
import torch
def train(model, loader):
\tmodel.to(memory_format=torch.channels_last)
\tfor i, (x, y) in enumerate(tqdm(loader), 0):
\t\tx = x.to(memory_format=torch.channels_last)
\t\twith torch.autocast(x.device.type, dtype=torch.bfloat16):
\t\t\tout = model(
\t\t\t\tx,  # images
\t\t\t)

\t\t\t# the loss
\t\t\tloss = crit(out, y)
\t\tloss.backward()
""",
    ),
    "a string over several lines": (
        {"no_grad": True},
        '''\
import torch
for x, y in loader:
    loss = crit(model(x), y)
    loss.backward()
for x, y in val:
    out = model(x)
    print("""as
it is
    here""", out)
# a comment
''',
        '''\
import torch
for x, y in loader:
    loss = crit(model(x), y)
    loss.backward()
with torch.no_grad():
    for x, y in val:
        out = model(x)
        print("""as
it is
    here""", out)
# a comment
''',
    ),
    "a decorated method": (
        {"bf16": True},
        """\
import torch
class Trainer:
  @timed
  def step(self, batch):
    loss = self.crit(self.model(batch[0].to(self.device)), batch[1])
    loss.backward()
""",
        """\
import torch
class Trainer:
  @timed
  def step(self, batch):
    with torch.autocast(next(self.model.parameters()).device.type, dtype=torch.bfloat16):
      loss = self.crit(self.model(batch[0].to(self.device)), batch[1])
    loss.backward()
""",
    ),
    "a batch by keywords, whose network makes the loss": (
        {"bf16": True},
        """\
import torch
for batch in loader:
    outputs = model(**batch)
    loss = outputs.loss
    accelerator.backward(loss)
""",
        """\
import torch
for batch in loader:
    with torch.autocast(next(model.parameters()).device.type, dtype=torch.bfloat16):
        outputs = model(**batch)
        loss = outputs.loss
    accelerator.backward(loss)
""",
    ),
    "channels last of an expression": (
        {"channels_last": True},
        """\
import torch
for fold in range(5):
    model = Net()
    for batch in loader:
        loss = crit(model(batch["x"].cuda()), batch["y"])
""",
        """\
import torch
for fold in range(5):
    model = Net()
    model.to(memory_format=torch.channels_last)
    for batch in loader:
        loss = crit(model(batch["x"].cuda().to(memory_format=torch.channels_last)), batch["y"])
""",
    ),
    "a loader over several lines": (
        LOADER,
        """\
import torch
loader = DataLoader(
    train_set,
    batch_size=4,  # few
    shuffle=True,
    num_workers=2, prefetch_factor=4,
    persistent_workers=True,
)
""",
        """\
import torch
loader = DataLoader(
    train_set,
    batch_size=64,  # few
    shuffle=True,
    num_workers=0,
)
""",
    ),
    "a positional batch size": (
        LOADER,
        "import torch\nloader = DataLoader(train_set, 4, True, num_workers = args.workers)\n",
        "import torch\nloader = DataLoader(train_set, 64, True, num_workers = 0)\n",
    ),
    "settings after two stars": (
        LOADER,
        "import torch\nloader = DataLoader(train_set, **settings)\n",
        "import torch\nloader = DataLoader(train_set, "
        '**{**settings, "num_workers": 0, "batch_size": 64})\n',
    ),
    "an argument in parentheses": (
        LOADER,
        "import torch\nloader = DataLoader((train_set))\n",
        "import torch\nloader = DataLoader((train_set), num_workers=0, batch_size=64)\n",
    ),
    "a loader in a comprehension": (
        LOADER,
        "import torch\nloaders = {part: DataLoader(dataset=sets[part],\n"
        "                             batch_size=4) for part in sets}\n",
        "import torch\nloaders = {part: DataLoader(dataset=sets[part],\n"
        "                             batch_size=64,\n"
        "                             num_workers=0) for part in sets}\n",
    ),
    "letters of two bytes": (
        LOADER,
        'import torch\nname, loader = "Überfluß", DataLoader(train_set, 4)\n',
        'import torch\nname, loader = "Überfluß", DataLoader(train_set, 64, num_workers=0)\n',
    ),
    "no end of the last line": (
        LOADER,
        "import torch\nloader = DataLoader(train_set, 4)",
        "import torch\nloader = DataLoader(train_set, 64, num_workers=0)",
    ),
}


def fix(script, traced, source, changes):
    written = script(source)

    def site(*names, nth=0):
        for name in names:
            try:
                return written.call(name, nth)
            except IndexError:
                continue
        return None

    networks = "net", "model", "self.model"
    trace = traced(loader=site("DataLoader"), forward=site(*networks), graphs=site("model", nth=1))
    return written.fix(trace, **changes)


@pytest.mark.parametrize("name", CASES)
def test_only_the_lines_that_must_change_do(script, traced, name):
    changes, before, after = CASES[name]
    found = fix(script, traced, before, changes)
    assert found.after.decode() == HEAD + after
    assert not any(one.left for one in found.lines)


@pytest.mark.parametrize("name", CASES)
def test_line_ends_and_the_byte_order_mark_stay(script, traced, name):
    changes, before, after = CASES[name]

    def as_windows(text):
        return codecs.BOM_UTF8 + text.replace("\n", "\r\n").encode()

    found = fix(script, traced, as_windows(before), changes)
    assert found.after == as_windows(HEAD + after)


def test_the_first_lines_of_a_file_stay_the_first(script, traced):
    before = (
        '#!/usr/bin/env python\n# -*- coding: latin-1 -*-\n"""é"""\nloader = DataLoader(a, 4)\n'
    )
    found = fix(script, traced, before.encode("latin-1"), LOADER)
    first = before.splitlines()[:3]
    expected = [*first[:2], HEAD.strip(), first[2]]
    assert found.after.decode("latin-1").splitlines()[:4] == expected


UNSURE = {
    "a block behind its colon": (
        "for x, y in loader: loss = crit(model(x), y); loss.backward()\n",
        {"bf16": True},
        "its block is written behind the colon, in the same line",
    ),
    "arguments after a star": (
        "loader = DataLoader(*given)\n",
        {"batch_factor": 16},
        "batch_size may be in the arguments after *",
    ),
    "a generator": (
        "loader = DataLoader(a for a in b)\n",
        {"batch_factor": 16},
        "its only argument is a generator without separate parentheses",
    ),
    "a name that is taken": (
        "import torch\nclass CachedBatches: pass\nloader = DataLoader(a, 4)\n",
        {"cache": "items"},
        "the script has something else called CachedBatches",
    ),
    "a loss of another function": (
        "def forward(x):\n    return model(x)\n",
        {"bf16": True},
        "the loss is computed elsewhere",
    ),
}


@pytest.mark.parametrize("name", UNSURE)
def test_what_is_not_certain_is_a_comment_at_its_place(script, traced, name):
    before, changes, reason = UNSURE[name]
    found = fix(script, traced, before, changes)
    left = [one for one in found.lines if one.left]
    assert reason in [one.left for one in left]
    rows = found.after.decode().splitlines()
    code = [row for row in rows if not row.strip().startswith("#")]
    assert code == before.splitlines()
    said = " ".join(row.strip().removeprefix("# ") for row in rows if row not in code)
    assert all(one.text.splitlines()[0] in said for one in left)


def test_of_images_by_keyword_only_the_weights_are_put_channels_last(script, traced):
    before = "import torch\nfor x in loader:\n    model(x=x)\n"
    found = fix(script, traced, before, {"channels_last": True})
    (left,) = [one for one in found.lines if one.left]
    assert left.left == "the images are not the network's first positional argument"
    assert "model.to(memory_format=torch.channels_last)" in found.after.decode().splitlines()
