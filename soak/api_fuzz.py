"""Run Schemathesis on the API of a running server: no failures, nothing undocumented.

python soak/api_fuzz.py SCHEMATHESIS [EXAMPLES]   (make api-fuzz installs it in its own venv)
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
STUB = HERE.parent / "tests" / "serve" / "serve_stub.py"


def main(schemathesis: str, examples: str = "500") -> int:
    """Return the exit code of Schemathesis; every case is sent over a real socket."""
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "stub.onnx"
        model.write_text("1.0")
        command = [sys.executable, str(STUB), str(model)]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as server:
            try:
                assert server.stdout
                found = re.search(r"http://\S+", server.stdout.readline())
                assert found
                options = ["--phases", "coverage,fuzzing", "--max-examples", examples]
                options += ["--continue-on-failure", "--seed", "1", "--no-color"]
                config = ["--config-file", str(HERE / "schemathesis.toml")]
                run = [schemathesis, *config, "run", f"{found[0]}/openapi.json", *options]
                return subprocess.run(run, check=False).returncode
            finally:
                server.terminate()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
