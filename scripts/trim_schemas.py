"""Write the schemas that the manifests of examples/cluster are tested against.

python scripts/trim_schemas.py FOLDER   (with the operators' YAML definitions, see SOURCES)

A definition is about a megabyte. The script keeps the fields that the manifests use, all required
fields, and their types.
"""

import json
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
FILES = ROOT / "examples" / "cluster"
KEPT = ROOT / "tests" / "docs" / "kubernetes_schemas.json"
SOURCES = {
    "RayJob": "ray-project/kuberay ray-operator/config/crd/bases/ray.io_rayjobs.yaml",
    "RayService": "ray-project/kuberay ray-operator/config/crd/bases/ray.io_rayservices.yaml",
    "JobSet": "kubernetes-sigs/jobset config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml",
}
UNCHANGED = ("type", "enum", "required", "x-kubernetes-int-or-string")


def main() -> None:
    """Read the definition of each manifest's kind and write its trimmed schema."""
    schemas = {}
    for manifest in manifests():
        kind, (group, version) = manifest["kind"], manifest["apiVersion"].split("/")
        path = Path(sys.argv[1]) / SOURCES[kind].rpartition("/")[2]
        definition = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)["spec"]
        assert (definition["group"], definition["names"]["kind"]) == (group, kind)
        (full,) = [entry for entry in definition["versions"] if entry["name"] == version]
        schema = full["schema"]["openAPIV3Schema"]["properties"]["spec"]
        schemas[kind] = {
            "source": SOURCES[kind],
            "apiVersion": manifest["apiVersion"],
            "spec": trimmed(schema, [manifest["spec"]]),
        }
    KEPT.write_text(json.dumps(schemas, indent=1) + "\n", encoding="utf-8")


def manifests() -> list[dict[str, Any]]:
    """Read all manifests."""
    paths = sorted(FILES.glob("*.yaml"))
    return [yaml.safe_load(path.read_text(encoding="utf-8")) for path in paths]


def trimmed(schema: dict[str, Any], values: list[Any]) -> dict[str, Any]:
    """Return the schema of the fields that these values have or must have."""
    kept = {key: schema[key] for key in UNCHANGED if key in schema}
    if "properties" in schema:
        required = schema.get("required", [])
        used = {name for value in values for name in value}
        kept["properties"] = {
            name: trimmed(inner, [value[name] for value in values if name in value])
            for name, inner in schema["properties"].items()
            if name in used or name in required
        }
    elif "items" in schema:
        kept["items"] = trimmed(schema["items"], [item for value in values for item in value])
    elif "additionalProperties" in schema:
        kept["additionalProperties"] = trimmed(schema["additionalProperties"], [])
    return kept


if __name__ == "__main__":
    main()
