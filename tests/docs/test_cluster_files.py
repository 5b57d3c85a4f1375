"""The manifests and scripts of examples/cluster: their fields, options and commands exist."""

import copy
import inspect
import json
import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from cyclopts import CycloptsError

from onsight.cli import make_app
from onsight.errors import ConfigError

FILES = Path(__file__).parents[2] / "examples" / "cluster"
SCHEMAS = json.loads((Path(__file__).parent / "kubernetes_schemas.json").read_text())
TYPES = {"object": dict, "array": list, "string": str, "boolean": bool}
TYPES |= {"integer": int, "number": (int, float)}

# Those of `man sbatch` (Slurm 24.11) that a training may need.
SBATCH = [
    "account",
    "array",
    "chdir",
    "constraint",
    "cpus-per-gpu",
    "cpus-per-task",
    "dependency",
    "error",
    "exclusive",
    "export",
    "gpus",
    "gpus-per-node",
    "gpus-per-task",
    "gres",
    "job-name",
    "mail-type",
    "mail-user",
    "mem",
    "mem-per-cpu",
    "mem-per-gpu",
    "nodelist",
    "nodes",
    "ntasks",
    "ntasks-per-node",
    "open-mode",
    "output",
    "partition",
    "qos",
    "requeue",
    "signal",
    "time",
]


def manifests():
    paths = sorted(FILES.glob("*.yaml"))
    return [yaml.safe_load(path.read_text(encoding="utf-8")) for path in paths]


def faults(value, schema, place="spec"):
    """What of a value its schema does not allow, field by field."""
    if schema.get("x-kubernetes-int-or-string"):
        return [] if isinstance(value, (int, str)) else [f"{place} is no number or text"]
    kind = schema.get("type")
    if kind and (not isinstance(value, TYPES[kind]) or (kind == "integer" and value is True)):
        return [f"{place} is no {kind}"]
    found = (
        [f"{place} is none of {schema['enum']}"] if value not in schema.get("enum", [value]) else []
    )
    if isinstance(value, list):
        return found + [
            fault
            for number, item in enumerate(value)
            for fault in faults(item, schema["items"], f"{place}[{number}]")
        ]
    if not isinstance(value, dict):
        return found
    known = schema.get("properties")
    found += [
        f"{place}.{name} is missing" for name in schema.get("required", []) if name not in value
    ]
    for name, inner in value.items():
        if known is None:
            found += faults(inner, schema.get("additionalProperties", {}), f"{place}.{name}")
        elif name in known:
            found += faults(inner, known[name], f"{place}.{name}")
        else:
            found.append(f"{place}.{name} does not exist")
    return found


@pytest.mark.parametrize("manifest", manifests(), ids=lambda manifest: manifest["kind"])
def test_a_manifest_fits_the_definition_of_its_kind(manifest):
    kept = SCHEMAS[manifest["kind"]]
    assert manifest.keys() == {"apiVersion", "kind", "metadata", "spec"}
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", manifest["metadata"]["name"])
    assert manifest["apiVersion"] == kept["apiVersion"]
    assert faults(manifest["spec"], kept["spec"]) == []


def test_all_kinds_are_there():
    assert {manifest["kind"] for manifest in manifests()} == SCHEMAS.keys()


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda spec: spec.update(entrypoints="x"), "spec.entrypoints does not exist"),
        (lambda spec: spec.update(entrypoint=3), "spec.entrypoint is no string"),
        (lambda spec: spec["rayClusterSpec"].pop("headGroupSpec"), "headGroupSpec is missing"),
        (lambda spec: spec.update(backoffLimit="0"), "spec.backoffLimit is no integer"),
    ],
)
def test_a_planted_fault_is_found(change, fault):
    (manifest,) = [
        copy.deepcopy(manifest) for manifest in manifests() if manifest["kind"] == "RayJob"
    ]
    change(manifest["spec"])
    (found,) = faults(manifest["spec"], SCHEMAS["RayJob"]["spec"])
    assert fault in found


def mounts(template):
    for container in template["containers"]:
        yield from (mount["name"] for mount in container["volumeMounts"])


def pods(value):
    """Every pod template's spec inside a manifest."""
    if isinstance(value, dict):
        if "containers" in value:
            yield value
        for inner in value.values():
            yield from pods(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from pods(inner)


@pytest.mark.parametrize("manifest", manifests(), ids=lambda manifest: manifest["kind"])
def test_every_volume_that_is_mounted_exists(manifest):
    found = list(pods(manifest))
    assert found
    for pod in found:
        assert {*mounts(pod)} == {volume["name"] for volume in pod["volumes"]}


def scripts(pattern="*.sh"):
    found = {path.name: path.read_text(encoding="utf-8") for path in sorted(FILES.glob(pattern))}
    return pytest.mark.parametrize("script", found.values(), ids=found)


@scripts()
def test_bash_reads_every_script(script):
    assert script.startswith("#!/bin/bash\n")
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@scripts("slurm-*.sh")
def test_every_option_of_sbatch_exists(script):
    lines = [line for line in script.splitlines() if line.startswith("#SBATCH")]
    assert len(lines) > 5
    for line in lines:
        name = re.fullmatch(r"#SBATCH --([a-z-]+)(=\S+)?", line).group(1)
        assert name in SBATCH


def commands():
    """Yield every Onsight command in these files, with words in place of its variables."""
    for path in sorted(FILES.iterdir()):
        text = path.read_text(encoding="utf-8").replace("\\\n", " ")
        for line in re.findall(r"onsight ((?:train|sweep) [^\n`]*)", text):
            words = re.sub(r'"?\$\{resume\[@\]\}"?|\$resume|&$|"\s*&?$', "", line)
            yield re.sub(r'"?\$\{?(\w+)\}?"?', r"\1", words)


def parse(line):
    """Return the arguments that Onsight parses from a command line. Raises CycloptsError."""
    words = shlex.split(line)
    _, bound, _ = make_app(words[0]).parse_args(words, exit_on_error=False, print_error=False)
    return bound.arguments


@pytest.mark.parametrize("line", [*dict.fromkeys(commands())])
def test_every_command_is_accepted(line):
    try:
        arguments = parse(line)
    except CycloptsError as error:
        pytest.fail(str(error))
    if match := re.search(r"--cluster (\S+)", line):
        assert arguments["cluster"] == match[1]


@pytest.mark.parametrize("name", ["train", "sweep"])
def test_the_files_run_a_command_on_a_cluster(name):
    assert any(line.startswith(name) and "--cluster " in line for line in commands())


@pytest.mark.parametrize("line", ["train DATA --clusters auto", "train DATA --cluster"])
def test_a_wrong_command_is_rejected(line):
    with pytest.raises(CycloptsError):
        parse(line)


@pytest.fixture
def on_ray(monkeypatch):
    """The deployment's file, with a Ray that only notes what it is told."""
    told = {}
    serve = ModuleType("ray.serve")
    serve.Application = object

    def deployment(**options):
        told.update(options)
        return lambda made: type("Made", (), {"bind": staticmethod(lambda: "application")})

    def ingress(make):
        told["make"] = make
        return lambda made: made

    serve.deployment, serve.ingress = deployment, ingress
    ray = ModuleType("ray")
    ray.serve = serve
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "ray.serve", serve)
    monkeypatch.delitem(sys.modules, "onsight.serve.on_ray", raising=False)
    yield import_module("onsight.serve.on_ray"), told
    sys.modules.pop("onsight.serve.on_ray", None)


def test_the_service_is_one_that_the_deployment_takes(on_ray, tmp_path):
    module, told = on_ray
    (service,) = [manifest for manifest in manifests() if manifest["kind"] == "RayService"]
    inner = yaml.safe_load(service["spec"]["serveConfigV2"])
    (application,) = inner["applications"]
    assert application["import_path"] == "onsight.serve.on_ray:app"
    assert application["args"]["host"] == inner["http_options"]["host"]
    token = tmp_path / "token"
    token.write_text("a-token-of-some-length\n")
    wanted = module.DeploymentOptions(**{**application["args"], "token_file": str(token)})
    assert module.app(wanted) == "application"
    assert told["num_replicas"] == 2
    assert told["ray_actor_options"] == {"num_cpus": 4, "num_gpus": 0}
    assert inspect.isfunction(told["make"])  # what Ray takes for one that makes the application
    assert not inspect.signature(told["make"]).parameters
    with pytest.raises(ConfigError, match="lets the network in"):
        module.app(module.DeploymentOptions(model="x", host="0.0.0.0"))


def test_a_replica_answers_as_the_server_does(on_ray, trained, shared_bars):
    from starlette.testclient import TestClient

    import onsight

    module, told = on_ray
    module.app(module.DeploymentOptions(model=str(trained.path), device="cpu"))
    image = shared_bars / "across" / "000.png"
    with TestClient(told["make"](), base_url="http://localhost") as client:
        said = client.post("/predict", files={"images": image.read_bytes()}).json()
        assert client.get("/health", headers={"Host": "evil.example"}).status_code != 200
    (row,) = onsight.load(trained.path).predict_proba([image])
    assert said["predictions"][0]["probability"] == pytest.approx(float(row.max()), abs=1e-6)
