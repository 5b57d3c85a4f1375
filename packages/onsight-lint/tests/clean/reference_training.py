"""Training on a folder of class folders, on one GPU or many, resumable.

torchrun --nproc_per_node=8 reference_training.py /data/imagenet --amp --model-ema
"""

import argparse
import copy
import datetime
import math
import os
import time
from collections import defaultdict, deque
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
import torchvision
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, SequentialSampler
from torchvision.transforms import v2


class SmoothedValue:
    """A series of values: its median, its mean over all rows, its last."""

    def __init__(self, window_size=20):
        self.window = deque(maxlen=window_size)
        self.total = 0.0
        self.count = 0

    def update(self, value, n=1):
        self.window.append(value)
        self.count += n
        self.total += value * n

    def synchronize_between_processes(self):
        if not is_dist_available_and_initialized():
            return
        numbers = torch.tensor([self.count, self.total], dtype=torch.float64, device="cuda")
        dist.barrier()
        dist.all_reduce(numbers)
        self.count, self.total = int(numbers[0].item()), numbers[1].item()

    @property
    def median(self):
        return torch.tensor(list(self.window)).median().item()

    @property
    def global_avg(self):
        return self.total / max(self.count, 1)


class MetricLogger:
    def __init__(self, delimiter="  "):
        self.meters = defaultdict(SmoothedValue)
        self.delimiter = delimiter

    def update(self, **values):
        for name, value in values.items():
            if isinstance(value, torch.Tensor):
                value = value.item()
            self.meters[name].update(value)

    def synchronize_between_processes(self):
        for meter in self.meters.values():
            meter.synchronize_between_processes()

    def __str__(self):
        parts = [f"{name}: {m.median:.4f} ({m.global_avg:.4f})" for name, m in self.meters.items()]
        return self.delimiter.join(parts)

    def log_every(self, iterable, print_freq, header):
        start = time.time()
        for i, item in enumerate(iterable):
            yield item
            if i % print_freq == 0:
                seconds = datetime.timedelta(seconds=int(time.time() - start))
                print(f"{header} [{i}/{len(iterable)}] {self} {seconds}")


class ExponentialMovingAverage(torch.optim.swa_utils.AveragedModel):
    def __init__(self, model, decay, device="cpu"):
        def ema_avg(average, parameter, _num_averaged):
            return decay * average + (1 - decay) * parameter

        super().__init__(model, device, ema_avg, use_buffers=True)


def is_dist_available_and_initialized():
    return dist.is_available() and dist.is_initialized()


def get_world_size():
    return dist.get_world_size() if is_dist_available_and_initialized() else 1


def is_main_process():
    return not is_dist_available_and_initialized() or dist.get_rank() == 0


def save_on_master(state, path):
    if is_main_process():
        torch.save(state, path)


def reduce_across_processes(value):
    if not is_dist_available_and_initialized():
        return torch.tensor(value)
    tensor = torch.tensor(value, device="cuda")
    dist.barrier()
    dist.all_reduce(tensor)
    return tensor


def init_distributed_mode(args):
    args.distributed = "RANK" in os.environ
    if not args.distributed:
        return
    args.rank = int(os.environ["RANK"])
    args.gpu = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(args.gpu)
    dist.init_process_group("nccl")
    dist.barrier()


def accuracy(output, target, topk=(1,)):
    """Counts of right answers among the k best, and the rows."""
    with torch.inference_mode():
        maxk = max(topk)
        if target.ndim == 2:
            target = target.max(dim=1)[1]
        _, pred = output.topk(maxk, 1, True, True)
        correct = pred.t().eq(target[None])
        return [correct[:k].flatten().sum(dtype=torch.float32) for k in topk]


def train_one_epoch(model, criterion, optimizer, data_loader, device, epoch, args, ema, scaler):
    model.train()
    metric_logger = MetricLogger()
    header = f"Epoch: [{epoch}]"
    optimizer.zero_grad()
    for i, (image, target) in enumerate(metric_logger.log_every(data_loader, args.freq, header)):
        image = image.to(device, non_blocking=True)
        target = target.to(device, non_blocking=True)
        with torch.autocast(device_type=device.type, enabled=scaler is not None):
            output = model(image)
            loss = criterion(output, target) / args.accumulate

        if not math.isfinite(loss.item()):
            raise SystemExit(f"the loss is {loss.item()}, so training ends")

        last = (i + 1) % args.accumulate == 0 or i + 1 == len(data_loader)
        if scaler is not None:
            scaler.scale(loss).backward()
            if last:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), args.clip_grad_norm)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
        else:
            loss.backward()
            if last:
                nn.utils.clip_grad_norm_(model.parameters(), args.clip_grad_norm)
                optimizer.step()
                optimizer.zero_grad()

        if ema is not None and i % args.model_ema_steps == 0:
            ema.update_parameters(model)
            if epoch < args.lr_warmup_epochs:
                ema.n_averaged.fill_(0)

        batch_size = image.shape[0]
        metric_logger.update(loss=loss * args.accumulate, lr=optimizer.param_groups[0]["lr"])
        if target.ndim == 1:
            acc1, acc5 = accuracy(output, target, topk=(1, 5))
            metric_logger.meters["acc1"].update(acc1.item() / batch_size, n=batch_size)
            metric_logger.meters["acc5"].update(acc5.item() / batch_size, n=batch_size)


def evaluate(model, criterion, data_loader, device, print_freq=100, log_suffix=""):
    model.eval()
    metric_logger = MetricLogger()
    header = f"Test: {log_suffix}"
    num_processed_samples = 0
    with torch.inference_mode():
        for image, target in metric_logger.log_every(data_loader, print_freq, header):
            image = image.to(device, non_blocking=True)
            target = target.to(device, non_blocking=True)
            output = model(image)
            loss = criterion(output, target)
            acc1, acc5 = accuracy(output, target, topk=(1, 5))
            batch_size = image.shape[0]
            metric_logger.meters["loss"].update(loss.item(), n=batch_size)
            metric_logger.meters["acc1"].update(acc1.item() / batch_size, n=batch_size)
            metric_logger.meters["acc5"].update(acc5.item() / batch_size, n=batch_size)
            num_processed_samples += batch_size

    num_processed_samples = reduce_across_processes(num_processed_samples)
    if len(data_loader.dataset) != num_processed_samples.item() and is_main_process():
        print(f"{num_processed_samples.item()} of {len(data_loader.dataset)} pictures were seen")
    metric_logger.synchronize_between_processes()
    print(f"{header} Acc@1 {metric_logger.meters['acc1'].global_avg:.3%}")
    return metric_logger.meters["acc1"].global_avg


def load_data(traindir, valdir, args):
    normalize = v2.Normalize(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    tail = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), normalize]
    crop = [v2.RandomResizedCrop(args.crop), v2.RandomHorizontalFlip()]
    dataset = torchvision.datasets.ImageFolder(traindir, v2.Compose([*crop, *tail]))
    whole = [v2.Resize(args.resize), v2.CenterCrop(args.crop)]
    dataset_test = torchvision.datasets.ImageFolder(valdir, v2.Compose([*whole, *tail]))
    if args.distributed:
        train_sampler = DistributedSampler(dataset)
        test_sampler = DistributedSampler(dataset_test, shuffle=False)
    else:
        train_sampler = RandomSampler(dataset)
        test_sampler = SequentialSampler(dataset_test)
    return dataset, dataset_test, train_sampler, test_sampler


def make_collate(num_classes, args):
    if not args.mixup_alpha and not args.cutmix_alpha:
        return None
    mixes = [v2.MixUp(alpha=args.mixup_alpha, num_classes=num_classes)]
    if args.cutmix_alpha:
        mixes.append(v2.CutMix(alpha=args.cutmix_alpha, num_classes=num_classes))
    mix = v2.RandomChoice(mixes)

    def collate(batch):
        return mix(*torch.utils.data.default_collate(batch))

    return collate


def make_optimizer(model, args):
    decayed = [p for p in model.parameters() if p.requires_grad and p.ndim > 1]
    plain = [p for p in model.parameters() if p.requires_grad and p.ndim <= 1]
    groups = [
        {"params": decayed, "weight_decay": args.weight_decay},
        {"params": plain, "weight_decay": 0.0},
    ]
    if args.opt == "sgd":
        return torch.optim.SGD(groups, lr=args.lr, momentum=args.momentum, nesterov=True)
    return torch.optim.AdamW(groups, lr=args.lr)


def make_schedule(optimizer, args):
    main = torch.optim.lr_scheduler.CosineAnnealingLR(
        optimizer, T_max=args.epochs - args.lr_warmup_epochs, eta_min=args.lr_min
    )
    if not args.lr_warmup_epochs:
        return main
    warmup = torch.optim.lr_scheduler.LinearLR(
        optimizer, start_factor=0.01, total_iters=args.lr_warmup_epochs
    )
    return torch.optim.lr_scheduler.SequentialLR(
        optimizer, schedulers=[warmup, main], milestones=[args.lr_warmup_epochs]
    )


def main(args):
    Path(args.output_dir).mkdir(parents=True, exist_ok=True)
    init_distributed_mode(args)
    print(args)
    device = torch.device(args.device)
    if args.use_deterministic_algorithms:
        torch.backends.cudnn.benchmark = False
        torch.use_deterministic_algorithms(True)
    else:
        torch.backends.cudnn.benchmark = True

    train_dir, val_dir = Path(args.data) / "train", Path(args.data) / "val"
    dataset, dataset_test, train_sampler, test_sampler = load_data(train_dir, val_dir, args)
    num_classes = len(dataset.classes)
    data_loader = DataLoader(
        dataset,
        batch_size=args.batch_size,
        sampler=train_sampler,
        num_workers=args.workers,
        pin_memory=True,
        collate_fn=make_collate(num_classes, args),
    )
    data_loader_test = DataLoader(
        dataset_test,
        batch_size=args.batch_size,
        sampler=test_sampler,
        num_workers=args.workers,
        pin_memory=True,
    )

    print("making the model")
    model = torchvision.models.get_model(args.model, weights=args.weights, num_classes=num_classes)
    model.to(device)
    if args.distributed and args.sync_bn:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    criterion = nn.CrossEntropyLoss(label_smoothing=args.label_smoothing)
    optimizer = make_optimizer(model, args)
    scaler = torch.amp.GradScaler(device.type) if args.amp else None
    lr_scheduler = make_schedule(optimizer, args)

    model_without_ddp = model
    if args.distributed:
        model = nn.parallel.DistributedDataParallel(model, device_ids=[args.gpu])
        model_without_ddp = model.module

    model_ema = None
    if args.model_ema:
        adjust = get_world_size() * args.batch_size * args.model_ema_steps / args.epochs
        alpha = min(1.0, (1.0 - args.model_ema_decay) * adjust)
        model_ema = ExponentialMovingAverage(model_without_ddp, decay=1.0 - alpha, device=device)

    best, best_state = 0.0, None
    if args.resume:
        checkpoint = torch.load(args.resume, map_location="cpu", weights_only=True)
        model_without_ddp.load_state_dict(checkpoint["model"])
        if not args.test_only:
            optimizer.load_state_dict(checkpoint["optimizer"])
            lr_scheduler.load_state_dict(checkpoint["lr_scheduler"])
        args.start_epoch = checkpoint["epoch"] + 1
        if model_ema is not None:
            model_ema.load_state_dict(checkpoint["model_ema"])
        if scaler is not None:
            scaler.load_state_dict(checkpoint["scaler"])

    if args.test_only:
        if model_ema is not None:
            evaluate(model_ema, criterion, data_loader_test, device, log_suffix="EMA")
        else:
            evaluate(model, criterion, data_loader_test, device)
        return

    start_time = time.time()
    for epoch in range(args.start_epoch, args.epochs):
        if args.distributed:
            train_sampler.set_epoch(epoch)
        train_one_epoch(
            model, criterion, optimizer, data_loader, device, epoch, args, model_ema, scaler
        )
        lr_scheduler.step()
        acc = evaluate(model, criterion, data_loader_test, device=device)
        if model_ema is not None:
            acc = evaluate(model_ema, criterion, data_loader_test, device, log_suffix="EMA")
        if acc > best:
            best, best_state = acc, copy.deepcopy(model_without_ddp.state_dict())
        checkpoint = {
            "model": model_without_ddp.state_dict(),
            "optimizer": optimizer.state_dict(),
            "lr_scheduler": lr_scheduler.state_dict(),
            "epoch": epoch,
            "args": vars(args),
        }
        if model_ema is not None:
            checkpoint["model_ema"] = model_ema.state_dict()
        if scaler is not None:
            checkpoint["scaler"] = scaler.state_dict()
        save_on_master(checkpoint, os.path.join(args.output_dir, "checkpoint.pth"))

    if best_state is not None:
        save_on_master(best_state, os.path.join(args.output_dir, "best.pth"))
        probe = torch.randn(1, 3, args.crop, args.crop, device=device)
        model_without_ddp.eval()
        with torch.no_grad():
            print("a first score:", F.softmax(model_without_ddp(probe), dim=1).max().item())
    total = datetime.timedelta(seconds=int(time.time() - start_time))
    print(f"training time {total}, best {best:.3%}")


def get_args_parser():
    parser = argparse.ArgumentParser(description="Training of image classifiers")
    parser.add_argument("data")
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--weights", default=None)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("-b", "--batch-size", default=32, type=int)
    parser.add_argument("--epochs", default=90, type=int)
    parser.add_argument("-j", "--workers", default=16, type=int)
    parser.add_argument("--opt", default="sgd")
    parser.add_argument("--lr", default=0.1, type=float)
    parser.add_argument("--lr-min", default=0.0, type=float)
    parser.add_argument("--lr-warmup-epochs", default=5, type=int)
    parser.add_argument("--momentum", default=0.9, type=float)
    parser.add_argument("--weight-decay", default=1e-4, type=float)
    parser.add_argument("--label-smoothing", default=0.0, type=float)
    parser.add_argument("--mixup-alpha", default=0.0, type=float)
    parser.add_argument("--cutmix-alpha", default=0.0, type=float)
    parser.add_argument("--accumulate", default=1, type=int)
    parser.add_argument("--clip-grad-norm", default=1.0, type=float)
    parser.add_argument("--freq", default=10, type=int)
    parser.add_argument("--crop", default=224, type=int)
    parser.add_argument("--resize", default=256, type=int)
    parser.add_argument("--amp", action="store_true")
    parser.add_argument("--model-ema", action="store_true")
    parser.add_argument("--model-ema-steps", default=32, type=int)
    parser.add_argument("--model-ema-decay", default=0.99998, type=float)
    parser.add_argument("--sync-bn", action="store_true")
    parser.add_argument("--test-only", action="store_true")
    parser.add_argument("--use-deterministic-algorithms", action="store_true")
    parser.add_argument("--start-epoch", default=0, type=int)
    parser.add_argument("--resume", default="")
    parser.add_argument("--output-dir", default=".")
    return parser


if __name__ == "__main__":
    main(get_args_parser().parse_args())
