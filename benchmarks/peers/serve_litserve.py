"""LitServe with batching. python serve_litserve.py MODEL PORT"""

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import litserve
import numpy as np

import onsight
from onsight.inference.images import read_image
from onsight_explain.threads import usable_cores

MODEL = sys.argv[1]


class Api(litserve.LitAPI):
    """Decodes the images of a batch in threads and classifies them together."""

    def setup(self, device: str) -> None:
        self.predictor = onsight.load(MODEL)
        self.pool = ThreadPoolExecutor(usable_cores())

    def decode_request(self, request: dict[str, Any]) -> bytes:
        return bytes(request["images"].file.read())

    def batch(self, inputs: list[bytes]) -> np.ndarray:
        size = self.predictor.format
        return np.stack(list(self.pool.map(lambda content: read_image(content, size), inputs)))

    def predict(self, batch: np.ndarray) -> np.ndarray:
        return self.predictor.runner.run(batch).probabilities

    def unbatch(self, output: np.ndarray) -> list[np.ndarray]:
        return list(output)

    def encode_response(self, output: np.ndarray) -> dict[str, object]:
        best = int(output.argmax())
        return {"predicted": self.predictor.classes[best], "probability": float(output[best])}


if __name__ == "__main__":
    api = Api(max_batch_size=16, batch_timeout=0.005)
    server = litserve.LitServer(api, accelerator="cpu", timeout=60, fast_queue=False)
    server.run(
        host="127.0.0.1",
        port=int(sys.argv[2]),
        num_api_servers=1,
        log_level="warning",
        generate_client_file=False,
    )
