"""A billion images on 1,000 GPUs: a forecast by simulation, and how good it is on this machine.

    python benchmarks/scaling.py check LINES          # LINES: of scaling_measure.py
    python benchmarks/scaling.py plan LINES --chart docs/understand/efficiency.svg

check: the simulation, calibrated on one rank and on the cost of an exchange by itself, forecasts
two and three ranks and the cost of a killed rank. The table shows the measurements beside it. plan:
takes the published speed of a network on one machine of 8 GPUs, and simulates up to 125 such
machines. RESULTS.md has the sources.
"""

import argparse
import json
import math
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from scaling_job import Job, exponential, run_job, young
from scaling_steps import Exchange, Machine, Work, ring_seconds, simulate, unhidden

GRADIENT = 1  # index of LeNet's gradients among the measured all-reduce sizes; 0 is the loss
HOUR = 3600.0

# Published figures
GPUS_A_MACHINE, CORES_A_MACHINE = 8, 192  # p5.48xlarge, Amazon EC2
MACHINE_HOUR_DOLLARS = 39.33  # the same, Capacity Blocks, end of 2024
IMAGES_A_MACHINE = 1428  # ViT g/14 on a DGX H100: NVIDIA, NeMo user guide
PUBLISHED = {8: 1428, 16: 2846, 32: 5737, 64: 11222, 128: 21561}  # the same page
PARAMETERS = 1.0126e9  # timm's vit_giant_patch14_224
LINK_BYTES = 400e9 / 8  # 400 Gb/s for each GPU (The Llama 3 Herd of Models)
MTBF_LLAMA = 54 * 24 * HOUR * 16_384 / 419  # per GPU: the same paper
MTBF_RSC = 7.9 * HOUR * 1024  # Revisiting Reliability in Large-Scale ML Research Clusters
RESTART = 600.0  # finding and replacing a machine (MegaScale: under 10 minutes)
SLOW_SHARE, SLOW_BY = 0.005, 0.10  # share of slow machines, and by how much (MegaScale)
IMAGE_BYTES = 25_000  # LAION-400M at 256 pixels: 10 TB
# Assumed
BATCH, IMAGES, EPOCHS = 32, 1_000_000_000, 30
HOP_SECONDS = 10e-6  # between GPUs of different machines
BUCKET_BYTES = 25 * 2**20  # DistributedDataParallel's

Lines = dict[str, list[dict[str, Any]]]  # measurements by kind

SIZES = (8, 16, 32, 64, 128, 256, 512, 1000)


def read_lines(path: Path) -> Lines:
    found: Lines = {"units": [], "ranks": [], "kill": []}
    for line in path.read_text().splitlines():
        row = json.loads(line)
        found[row["what"]].append(row)
    return found


def middle(values: Iterable[float]) -> float:
    return statistics.median(values)


def unit(lines: Lines, name: str) -> float:
    """The median of a unit cost over the rounds that measured it."""
    return middle(row[name] for row in lines["units"] if name in row)


def two_cores(lines: Lines, ranks: int) -> Machine:
    """This machine; its cores' joint speed is that of convolutions in separate processes."""
    rate = {n: middle(row["convolutions_per_second"][n] for row in lines["units"]) for n in "123"}
    crowded = rate["2"] / (2 * rate["1"])
    return Machine(2, ranks, crowded, overfull=rate["3"] / rate["2"])


def exchange(lines: Lines, ranks: int) -> Exchange:
    """The measured all-reduce of the gradients and of the loss, with gloo."""
    rows = [row["all_reduce_seconds"][str(ranks)] for row in lines["units"]]
    return Exchange(middle(row[0] + row[GRADIENT] for row in rows) if ranks > 1 else 0.0)


def calibrated(lines: Lines, batch: int) -> Work:
    """A rank's work, calibrated on runs of one rank."""
    ones = [row["1"] for row in lines["ranks"] if row["batch"] == batch]
    seconds = batch / middle(run["images_per_second"] for run in ones)
    return Work(batch, seconds, middle(run["deviation"] for run in ones))


def check_ranks(lines: Lines) -> list[list[str]]:
    rows = []
    for batch in sorted({row["batch"] for row in lines["ranks"]}, reverse=True):
        work = calibrated(lines, batch)
        for ranks in (1, 2, 3):
            rates = [
                row[str(ranks)]["images_per_second"]
                for row in lines["ranks"]
                if row["batch"] == batch
            ]
            seen = middle(rates)
            machine = two_cores(lines, ranks)
            speed = simulate(machine, work, exchange(lines, ranks), ranks).images_per_second
            measured = f"{seen:,.0f} ({min(rates):,.0f} to {max(rates):,.0f}, {len(rates)})"
            rows.append(
                [f"{batch}", f"{ranks}", measured, f"{speed:,.0f}", f"{speed / seen - 1:+.1%}"]
            )
    return rows


def check_kill(lines: Lines) -> list[list[str]]:
    """Forecast what a killed rank costs: a start, as of one rank, and the repeated steps."""
    start = middle(row["1"]["start_seconds"] for row in lines["ranks"])
    speed = simulate(two_cores(lines, 2), calibrated(lines, 256), exchange(lines, 2), 2)
    step = middle(speed.step_seconds)
    rows = []
    for row in lines["kill"]:
        lost = row["killed_seconds"] - row["undisturbed_seconds"]
        repeated = row["steps_repeated"]  # since the last checkpoint, including the interrupted one
        job = Job(2 * repeated, step, interval=math.inf, restart=start)
        seen = run_job(job, iter([(repeated - 0.5) * step]))
        forecast = seen.seconds - job.steps * step
        numbers = (row["restart_seconds"], lost, forecast)
        rows.append(
            [f"{repeated}", *(f"{number:.1f}" for number in numbers), f"{forecast / lost - 1:+.1%}"]
        )
    return rows


def gpu_work(lines: Lines, seconds: float, slow: bool) -> Work:
    """A GPU's share of a step; decoding time and deviation are those measured here."""
    return Work(
        BATCH,
        seconds,
        calibrated(lines, 256).deviation,
        unit(lines, "decode_seconds"),
        decode_threads=CORES_A_MACHINE // GPUS_A_MACHINE,
        image_bytes=IMAGE_BYTES,
        slow_share=SLOW_SHARE if slow else 0.0,
        slow_by=SLOW_BY,
    )


def gpu_exchange(gpus: int) -> Exchange:
    """Gradients in float32, sent during the backward pass, two thirds of a step's arithmetic."""
    machines = gpus // GPUS_A_MACHINE
    nbytes, buckets = 4 * PARAMETERS, math.ceil(4 * PARAMETERS / BUCKET_BYTES)
    hops = buckets * 2 * math.ceil(math.log2(machines)) if machines > 1 else 0
    seconds = ring_seconds(machines, nbytes, GPUS_A_MACHINE * LINK_BYTES, HOP_SECONDS, hops)
    step = BATCH * GPUS_A_MACHINE / IMAGES_A_MACHINE
    return Exchange(unhidden(seconds, step * 2 / 3, buckets))


def gpu_speed(lines: Lines, gpus: int, seconds: float, slow: bool = False) -> float:
    machine = Machine(CORES_A_MACHINE, GPUS_A_MACHINE, link_bytes=12.5e9, gpus=GPUS_A_MACHINE)
    work = gpu_work(lines, seconds, slow)
    return simulate(machine, work, gpu_exchange(gpus), gpus, steps=30).images_per_second


def gpu_seconds(lines: Lines) -> float:
    """A GPU's computing time per step at which one simulated machine has its published speed."""
    step = BATCH * GPUS_A_MACHINE / IMAGES_A_MACHINE
    return step * gpu_speed(lines, GPUS_A_MACHINE, step) / IMAGES_A_MACHINE


def gpu_job(lines: Lines, gpus: int, speed: float, mtbf: float) -> Job:
    """The whole training, with checkpoints at the optimal interval."""
    nbytes = 3 * 4 * PARAMETERS  # float32 weights and AdamW's two moments
    pause = nbytes * unit(lines, "copy_byte_seconds")
    interval = young(pause, mtbf / gpus)
    write = nbytes * unit(lines, "write_byte_seconds")
    steps = math.ceil(IMAGES / (gpus * BATCH)) * EPOCHS
    return Job(steps, gpus * BATCH / speed, interval, pause, write, RESTART)


def mean_hours(job: Job, mtbf: float, draws: int = 20) -> tuple[float, float]:
    """The job's hours and lost ranks: means over several draws."""
    seen = [run_job(job, exponential(mtbf, seed)) for seed in range(draws)]
    hours = statistics.mean(job_run.seconds for job_run in seen) / HOUR
    return hours, statistics.mean(job_run.losses for job_run in seen)


def plan_rows(lines: Lines, sizes: Sequence[int]) -> list[dict[str, float]]:
    rows, seconds = [], gpu_seconds(lines)
    for gpus in sizes:
        quick, held = (gpu_speed(lines, gpus, seconds, slow) for slow in (False, True))
        ideal = IMAGES_A_MACHINE * gpus / GPUS_A_MACHINE
        row = {"gpus": gpus, "speed": quick, "even": quick / ideal, "slow": held / ideal}
        for name, mtbf in (("llama", MTBF_LLAMA), ("rsc", MTBF_RSC)):
            job = gpu_job(lines, gpus, held, mtbf)
            hours, losses = mean_hours(job, mtbf / gpus)
            row |= {f"{name}_hours": hours, f"{name}_losses": losses}
            row |= {f"{name}_interval": job.interval, f"{name}_mtbf": mtbf / gpus / HOUR}
            row |= {name: EPOCHS * IMAGES / (hours * HOUR) / ideal}
            row |= {f"{name}_dollars": hours * gpus / GPUS_A_MACHINE * MACHINE_HOUR_DOLLARS}
        rows.append(row)
    return rows


def show_plan(rows: list[dict[str, float]]) -> list[list[str]]:
    return [
        [
            f"{row['gpus']:,}",
            f"{row['speed']:,.0f}",
            *(f"{row[name]:.1%}" for name in ("even", "slow", "llama", "rsc")),
            *(f"{row[f'{name}_losses']:.1f}" for name in ("llama", "rsc")),
            f"{row['rsc_hours'] / EPOCHS:,.2f}",
            f"{row['rsc_dollars'] / EPOCHS:,.0f}",
        ]
        for row in rows
    ]


def print_table(header: list[str], rows: list[list[str]]) -> None:
    for line in (header, ["---"] * len(header), *rows):
        print(f"| {' | '.join(line)} |")
    print()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["check", "plan"])
    parser.add_argument("lines", type=Path)
    parser.add_argument("--chart", type=Path)
    parser.add_argument("--gpus", type=int, nargs="+", default=SIZES, help="of the plan")
    options = parser.parse_args(arguments)
    lines = read_lines(options.lines)
    if options.what == "check":
        header = ["batch size per rank", "ranks", "measured images/s", "forecast", "error"]
        print_table(header, check_ranks(lines))
        header = ["steps repeated", "s to the next step", "s lost", "s forecast", "error"]
        print_table(header, check_kill(lines))
        return
    rows = plan_rows(lines, options.gpus)
    header = ["GPUs", "images/s", "even GPUs", "slow machines", "with losses: Llama 3", "RSC"]
    header += ["ranks lost: Llama 3", "RSC", "hours per epoch", "dollars per epoch"]
    print_table(header, show_plan(rows))
    print(json.dumps(rows[-1]))
    if options.chart:
        from scaling_chart import draw

        draw(rows, PUBLISHED, options.chart)


if __name__ == "__main__":
    main()
