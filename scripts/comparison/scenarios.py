"""The scenarios that both trees run: commands and snippets on small inputs, by name."""

from dataclasses import dataclass

PLAIN = ("--device", "cpu", "--threads", "2", "--plan", "default")
TRAIN = (*PLAIN, "--folds", "1")
FEW = ("--epochs", "1", "--batch-size", "32")
SMALL = (*TRAIN, *FEW)
LENET = (*SMALL, "--model", "lenet")
BARS = "INPUTS/bars"


@dataclass(frozen=True)
class Step:
    """A command of `onsight`, or a Python snippet.

    command: INPUTS stands for the folder of inputs. kill_when: send SIGKILL once this file exists.
    timings: a file in the inputs, with timings for `explain` to use instead of measuring.
    exit_code: that of the baseline; any other is an error, because a command that fails by mistake
    would compare nothing.
    """

    command: tuple[str, ...] = ()
    code: str = ""
    kill_when: str = ""
    timings: str = ""
    exit_code: int = 0


@dataclass(frozen=True)
class Scenario:
    """Steps that run one after another in an empty folder. is_quick: part of the quick tier."""

    name: str
    steps: tuple[Step, ...]
    is_quick: bool = False


def _train(name: str, *words: str, data: str = BARS, is_quick: bool = False) -> Scenario:
    command = ("train", data, "--out", "run", "--json", *words)
    return Scenario(name, (Step(command),), is_quick)


def _refused(name: str, *words: str) -> Scenario:
    return Scenario(f"refused: {name}", (Step(words, exit_code=2),), is_quick=True)


def _with_run(name: str, *steps: Step, is_quick: bool = False) -> Scenario:
    return Scenario(name, (Step(("train", BARS, "--out", "run", *LENET)), *steps), is_quick)


def _explain(script: str, data: str, *words: str, is_quick: bool = False) -> Scenario:
    """A scenario that tries every change on a script, and writes its fixed text."""
    command = ("explain", f"INPUTS/training/{script}.py", "--write", "fixed.py", "--seconds", "120")
    step = Step((*command, "--json", "--", data, *words), timings=f"INPUTS/training/{script}.json")
    return Scenario(f"explain {script}", (step,), is_quick)


DEMO = (*TRAIN, "--epochs", "1", "--train-images", "300")

SNIPPET = """
import torch
from torch import nn
import onsight

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(256, 2))

    def forward(self, images):
        return self.layers(images)

torch.manual_seed(0)
run = onsight.train(
    str(INPUTS / "bars"), out="run", model=Net(), image_size=16, device="cpu", threads=2,
    plan="default", folds=1, epochs=2, batch_size=32,
)
print(run.results["accuracy"], run.results["confusion"])
"""
ESTIMATOR = """
import numpy as np
from onsight import Classifier

images = np.random.default_rng(0).integers(0, 256, (60, 16, 16, 1), np.uint8)
labels = np.arange(60) % 2
images[labels == 1, :8] //= 4
classifier = Classifier(
    model="lenet", epochs=2, device="cpu", threads=2, plan="default", batch_size=16
)
classifier.fit(images, labels)
print(classifier.predict(images[:20]).tolist(), classifier.predict_proba(images[:5]).tolist())
"""
PREDICTOR = """
import onsight
predictor = onsight.load("run")
paths = sorted((INPUTS / "bars" / "down").glob("*.png"))[:8]
print(predictor.predict_proba(paths).tolist())
print(onsight.evaluate("run", str(INPUTS / "bars"))["confusion"])
"""
SERVER = """
import json, re, subprocess, sys, time, urllib.error, urllib.request
server = subprocess.Popen(
    [sys.executable, "-m", "onsight", "serve", "run", "--port", "0"],
    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
)
for line in server.stdout:
    if found := re.search(r"http://127\\.0\\.0\\.1:\\d+", line):
        url = found[0]
        break
image = (INPUTS / "bars" / "down" / "000.png").read_bytes()
for _ in range(100):
    try:
        urllib.request.urlopen(url + "/health", timeout=60).close()
        break
    except urllib.error.HTTPError:
        break
    except OSError:
        time.sleep(0.2)

def ask(path, body=None, kind="image/png"):
    request = urllib.request.Request(url + path, body, {"Content-Type": kind} if body else {})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()

try:
    for request in (
        ("/predict", image), ("/predict", b"no image"), ("/predict",), ("/healthz",), ("/readyz",),
        ("/health",), ("/ready",), ("/models",), ("/nowhere",), ("/predict?top=2", image),
    ):
        status, answer = ask(*request)
        answer = re.sub(r'"(\\w*(ms|seconds)\\w*)": ?[\\d.]+', r'"\\1": 0', answer)
        print(request[0], status, answer)
finally:
    server.terminate()
    server.communicate(timeout=60)
"""
EXPORTS = """
import glob
import numpy as np, onnxruntime, torch
for path in sorted(glob.glob("**/*.onnx", recursive=True)):
    session = onnxruntime.InferenceSession(path)
    (entry,) = session.get_inputs()
    shape = [size if isinstance(size, int) else 2 for size in entry.shape]
    kind = np.uint8 if "uint8" in entry.type else np.float32
    images = np.random.default_rng(0).integers(0, 256, shape).astype(kind)
    for output in session.run(None, {entry.name: images}):
        print(path, np.asarray(output, np.float64).round(5).tolist())
for path in sorted(glob.glob("**/*.pt2", recursive=True)):
    forward = torch.export.load(path).module()
    print(path, forward(torch.from_numpy(images)).double().numpy().round(5).tolist())
"""

SCENARIOS = (
    *(
        _train(f"demo, {name}", "--model", name, *DEMO, data="demo", is_quick=name == "sprint")
        for name in ("compact", "sprint", "lenet", "conv3", "quick", "linear")
    ),
    _train("folder", *LENET, is_quick=True),
    _train("zip", *LENET, data="INPUTS/bars.zip", is_quick=True),
    _train("tar", *LENET, data="INPUTS/bars.tar"),
    _train("CSV", *LENET, data="INPUTS/bars.csv"),
    _train("Parquet", *LENET, data="INPUTS/bars.parquet"),
    _train("IDX", *LENET, data="INPUTS/idx"),
    _train("messy images", *LENET, "--image-size", "24", data="INPUTS/messy", is_quick=True),
    _train("cross-validation", *PLAIN, *FEW, "--model", "lenet", "--folds", "3", is_quick=True),
    _train(
        "frozen, published weights",
        *SMALL,
        "--model",
        "tf_efficientnet_lite0",
        "--pretrained",
        "--freeze",
        "--image-size",
        "32",
    ),
    _train("accumulation", *LENET, "--accumulate", "2"),
    _train("mixup, cutmix, EMA", *LENET, "--mixup", "0.4", "--cutmix", "1", "--ema", "0.9"),
    _train(
        "augmentations",
        *LENET,
        "--rotate-degrees",
        "10",
        "--jitter",
        "0.2",
        "--cutout",
        "0.2",
        "--crop-area",
        "0.6",
        "--translate",
        "0.1",
        is_quick=True,
    ),
    _train(
        "balanced classes, label smoothing",
        *LENET,
        "--class-weights",
        "balanced",
        "--label-smoothing",
        "0.1",
        "--clip-norm",
        "1",
    ),
    _train("streamed", *LENET, "--residency", "stream"),
    _train(
        "several epochs",
        *TRAIN,
        "--model",
        "lenet",
        "--epochs",
        "3",
        "--patience-epochs",
        "1",
        "--test-each-epoch",
        "--keep-epochs",
    ),
    _train("two ranks", *LENET, "--ranks", "2"),
    _with_run(
        "fine-tuning",
        Step(("train", BARS, "--out", "tuned", "--weights", "run", *SMALL, "--model", "lenet")),
    ),
    Scenario(
        "resumed after a kill",
        (
            Step(
                ("train", BARS, "--out", "run", *TRAIN, "--model", "lenet", "--epochs", "30"),
                kill_when="run/checkpoints/last.safetensors",
            ),
            Step(("train", BARS, "--out", "run", "--resume", "--json")),
        ),
    ),
    Scenario(
        "shards",
        (
            Step(("shard", BARS, "--out", "shards")),
            Step(("train", "shards", "--out", "run", "--json", *LENET)),
        ),
    ),
    Scenario("user's network", (Step(code=SNIPPET),), is_quick=True),
    Scenario("estimator", (Step(code=ESTIMATOR),)),
    _with_run(
        "predict and evaluate",
        Step(("predict", "run", "INPUTS/odd", "--csv", "odd.csv")),
        Step(("predict", "run", BARS, "--json")),
        Step(("eval", "run", BARS, "--json")),
        Step(code=PREDICTOR),
        is_quick=True,
    ),
    _with_run(
        "export to ONNX", Step(("export", "run", "--to", "onnx")), Step(code=EXPORTS), is_quick=True
    ),
    _with_run(
        "other exports",
        Step(("export", "run", "--to", "onnx", "--int8", "--max-loss", "100")),
        Step(("export", "run", "--to", "web"), exit_code=2),  # onnxruntime-web comes from npm
        Step(("export", "run", "--to", "torch-export")),
        Step(code=EXPORTS),
    ),
    _with_run("server", Step(code=SERVER)),
    _with_run(
        "reports",
        Step(("report", "run")),
        Step(("card", "run")),
        Step(("train", BARS, "--out", "other", *LENET, "--seed", "1")),
        Step(("compare", "run", "other")),
        Step(("embed", "run", BARS, "--out", "features.npz")),
        Step(("similar", "run", "INPUTS/bars/down/000.png", "--among", BARS)),
    ),
    Scenario(
        "check", (Step(("check", "INPUTS/messy", "--json")), Step(("check", BARS))), is_quick=True
    ),
    Scenario("lint", (Step(("lint", "INPUTS/scripts"), exit_code=1),), is_quick=True),
    Scenario("lint, 200 files of torch", (Step(("lint", "INPUTS/torch-files")),)),
    _explain("sync_in_loop", "INPUTS/training/arrays", "--batch-size", "8", is_quick=True),
    _explain("eval_with_grad", "INPUTS/training/arrays"),
    _explain("slow_transform", "INPUTS/training/folders"),
    Scenario("lists", (Step(("models",)), Step(("recipes",))), is_quick=True),
    _refused("no data", "train", "INPUTS/absent", *LENET),
    _refused("unknown model", "train", BARS, *SMALL, "--model", "lenett"),
    _refused("unknown option", "train", BARS, "--epoch", "3"),
    _refused("out of range", "train", BARS, *TRAIN, "--epochs", "-1"),
    _refused("not a model", "predict", "INPUTS/bars.csv", BARS),
    _refused("a file that is no archive", "train", "INPUTS/broken.zip", *LENET),
)
