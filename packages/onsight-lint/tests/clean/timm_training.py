"""Training with timm's parts: its model, optimizer, schedule, mixup and average."""

import argparse
import logging
import time
from collections import OrderedDict
from contextlib import suppress
from functools import partial

import torch
from timm import utils
from timm.data import Mixup, create_dataset, create_loader, resolve_data_config
from timm.loss import LabelSmoothingCrossEntropy, SoftTargetCrossEntropy
from timm.models import create_model, safe_model_name
from timm.optim import create_optimizer_v2, optimizer_kwargs
from timm.scheduler import create_scheduler_v2, scheduler_kwargs
from timm.utils import NativeScaler
from torch import nn
from torch.nn.parallel import DistributedDataParallel as NativeDDP

_logger = logging.getLogger("train")

parser = argparse.ArgumentParser()
parser.add_argument("data_dir")
parser.add_argument("--model", default="resnet50")
parser.add_argument("--batch-size", type=int, default=128)
parser.add_argument("--workers", type=int, default=4)
parser.add_argument("--num-classes", type=int, default=1000)
parser.add_argument("--epochs", type=int, default=300)
parser.add_argument("--opt", default="adamw")
parser.add_argument("--lr", type=float, default=1e-3)
parser.add_argument("--weight-decay", type=float, default=0.05)
parser.add_argument("--sched", default="cosine")
parser.add_argument("--mixup", type=float, default=0.0)
parser.add_argument("--smoothing", type=float, default=0.1)
parser.add_argument("--clip-grad", type=float, default=None)
parser.add_argument("--amp", action="store_true")
parser.add_argument("--channels-last", action="store_true")
parser.add_argument("--model-ema", action="store_true")
parser.add_argument("--resume", default="")
parser.add_argument("--log-interval", type=int, default=50)


class AverageMeter:
    """The last value and the mean, each value weighed by its rows."""

    def __init__(self):
        self.reset()

    def reset(self):
        self.val = self.avg = self.sum = 0
        self.count = 0

    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count


def resume_checkpoint(model, path, optimizer=None, loss_scaler=None):
    checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    state_dict = OrderedDict()
    for key, value in checkpoint["state_dict"].items():
        state_dict[key.removeprefix("module.")] = value
    model.load_state_dict(state_dict)
    if optimizer is not None:
        optimizer.load_state_dict(checkpoint["optimizer"])
    if loss_scaler is not None and loss_scaler.state_dict_key in checkpoint:
        loss_scaler.load_state_dict(checkpoint[loss_scaler.state_dict_key])
    return checkpoint["epoch"] + 1


def main():
    utils.setup_default_logging()
    args = parser.parse_args()
    device = utils.init_distributed_device(args)
    utils.random_seed(42, args.rank)

    model = create_model(args.model, pretrained=False, num_classes=args.num_classes)
    data_config = resolve_data_config(vars(args), model=model)
    _logger.info("%s created", safe_model_name(args.model))
    model.to(device=device)
    if args.channels_last:
        model.to(memory_format=torch.channels_last)

    optimizer = create_optimizer_v2(model, **optimizer_kwargs(cfg=args))
    amp_autocast, loss_scaler = suppress, None
    if args.amp:
        amp_autocast = partial(torch.autocast, device_type=device.type, dtype=torch.float16)
        loss_scaler = NativeScaler()
    start_epoch = 0
    if args.resume:
        start_epoch = resume_checkpoint(model, args.resume, optimizer, loss_scaler)
    model_ema = utils.ModelEmaV3(model, decay=0.9998) if args.model_ema else None
    if args.distributed:
        model = NativeDDP(model, device_ids=[device])

    mixup_fn = None
    if args.mixup > 0:
        mixup_fn = Mixup(mixup_alpha=args.mixup, num_classes=args.num_classes)
    loader_train = create_loader(
        create_dataset("", root=args.data_dir, split="train", is_training=True),
        input_size=data_config["input_size"],
        batch_size=args.batch_size,
        is_training=True,
        num_workers=args.workers,
    )
    loader_eval = create_loader(
        create_dataset("", root=args.data_dir, split="validation", is_training=False),
        input_size=data_config["input_size"],
        batch_size=args.batch_size,
        is_training=False,
        num_workers=args.workers,
    )
    train_loss_fn = SoftTargetCrossEntropy() if mixup_fn else LabelSmoothingCrossEntropy(0.1)
    train_loss_fn = train_loss_fn.to(device=device)
    validate_loss_fn = nn.CrossEntropyLoss().to(device=device)
    lr_scheduler, num_epochs = create_scheduler_v2(optimizer, **scheduler_kwargs(args))

    best_metric, saver = None, None
    if utils.is_primary(args):
        saver = utils.CheckpointSaver(model=model, optimizer=optimizer, args=args)
    try:
        for epoch in range(start_epoch, num_epochs):
            train_metrics = train_one_epoch(
                epoch,
                model,
                loader_train,
                optimizer,
                train_loss_fn,
                args,
                device=device,
                amp_autocast=amp_autocast,
                loss_scaler=loss_scaler,
                model_ema=model_ema,
                mixup_fn=mixup_fn,
            )
            eval_metrics = validate(model, loader_eval, validate_loss_fn, args, device)
            if model_ema is not None:
                eval_metrics = validate(
                    model_ema, loader_eval, validate_loss_fn, args, device, log_suffix=" (EMA)"
                )
            if saver is not None:
                best_metric, _ = saver.save_checkpoint(epoch, metric=eval_metrics["top1"])
            lr_scheduler.step(epoch + 1, eval_metrics["top1"])
            _logger.info("%s %s", train_metrics, eval_metrics)
    except KeyboardInterrupt:
        pass
    _logger.info("best %s", best_metric)


def train_one_epoch(
    epoch,
    model,
    loader,
    optimizer,
    loss_fn,
    args,
    device,
    amp_autocast=suppress,
    loss_scaler=None,
    model_ema=None,
    mixup_fn=None,
):
    losses_m, batch_time_m = AverageMeter(), AverageMeter()
    model.train()
    end = time.time()
    last_idx = len(loader) - 1
    for batch_idx, (input, target) in enumerate(loader):
        input, target = input.to(device), target.to(device)
        if mixup_fn is not None:
            input, target = mixup_fn(input, target)
        if args.channels_last:
            input = input.contiguous(memory_format=torch.channels_last)
        with amp_autocast():
            output = model(input)
            loss = loss_fn(output, target)
        optimizer.zero_grad()
        if loss_scaler is not None:
            loss_scaler(loss, optimizer, clip_grad=args.clip_grad, parameters=model.parameters())
        else:
            loss.backward()
            if args.clip_grad is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip_grad)
            optimizer.step()
        if model_ema is not None:
            model_ema.update(model)
        batch_time_m.update(time.time() - end)
        losses_m.update(loss.item(), input.size(0))
        if batch_idx == last_idx or batch_idx % args.log_interval == 0:
            images = input.size(0) * args.world_size
            _logger.info(
                "%d [%d/%d] %.3f, %.1f images/s",
                epoch,
                batch_idx,
                len(loader),
                losses_m.val,
                images / batch_time_m.val,
            )
        end = time.time()
    return OrderedDict([("loss", losses_m.avg)])


def validate(model, loader, loss_fn, args, device, amp_autocast=suppress, log_suffix=""):
    losses_m, top1_m, top5_m = AverageMeter(), AverageMeter(), AverageMeter()
    model.eval()
    with torch.no_grad():
        for _batch_idx, (input, target) in enumerate(loader):
            input, target = input.to(device), target.to(device)
            with amp_autocast():
                output = model(input)
                if isinstance(output, (tuple, list)):
                    output = output[0]
                loss = loss_fn(output, target)
            acc1, acc5 = utils.accuracy(output, target, topk=(1, 5))
            if args.distributed:
                reduced_loss = utils.reduce_tensor(loss.data, args.world_size)
                acc1 = utils.reduce_tensor(acc1, args.world_size)
                acc5 = utils.reduce_tensor(acc5, args.world_size)
            else:
                reduced_loss = loss.data
            losses_m.update(reduced_loss.item(), input.size(0))
            top1_m.update(acc1.item(), output.size(0))
            top5_m.update(acc5.item(), output.size(0))
    _logger.info("test%s: %.3f", log_suffix, top1_m.avg)
    return OrderedDict([("loss", losses_m.avg), ("top1", top1_m.avg), ("top5", top5_m.avg)])


if __name__ == "__main__":
    main()
