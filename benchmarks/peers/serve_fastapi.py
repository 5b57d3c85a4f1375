"""A simple server: FastAPI, threads and torch. python serve_fastapi.py MODEL PORT"""

import sys

import torch
import uvicorn
from anyio import to_thread
from fastapi import FastAPI, UploadFile

import onsight
from onsight.inference.images import read_image
from onsight_explain.threads import usable_cores

predictor = onsight.load(sys.argv[1])
torch.set_num_threads(1)  # one request per core at a time, each with one thread
app = FastAPI()


@app.on_event("startup")
async def limit_threads() -> None:
    to_thread.current_default_thread_limiter().total_tokens = usable_cores()


@app.get("/health")
def health() -> str:
    return "up"


def classify(content: bytes) -> dict[str, object]:
    pixels = read_image(content, predictor.format)
    row = predictor.runner.run(pixels[None]).probabilities[0]
    best = int(row.argmax())
    return {"predicted": predictor.classes[best], "probability": float(row[best])}


@app.post("/predict")
async def predict(images: UploadFile) -> dict[str, object]:
    return await to_thread.run_sync(classify, await images.read())


uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[2]), log_level="warning", access_log=False)
