"""Shards of tiny images, made in memory."""

import hashlib
import io
import json
import tarfile

import numpy as np
from PIL import Image


def png(number, side=6):
    """An image that no other number has."""
    pixels = np.random.default_rng(number).integers(0, 256, (side, side), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def tar(members):
    """The bytes of a tar. members: name to content."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def make_shards(count, each, first=0):
    """Shards of images of two classes, numbered from first on: name to bytes."""
    shards = {}
    for shard in range(count):
        members = {}
        for number in range(first + shard * each, first + (shard + 1) * each):
            members[f"{number:05d}.png"] = png(number)
            members[f"{number:05d}.cls"] = b"cat" if number % 2 else b"dog"
        shards[f"part-{shard:03d}.tar"] = tar(members)
    return shards


def index_of(shards):
    """The index file of shards of images with labels beside them."""
    listed = []
    for name, content in shards.items():
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            images = len(archive.getnames()) // 2
        digest = hashlib.md5(content).hexdigest()
        facts = {"filesize": len(content), "md5sum": digest, "nsamples": images}
        listed.append({"url": name, **facts})
    return json.dumps({"wids_version": 1, "shardlist": listed}).encode()
