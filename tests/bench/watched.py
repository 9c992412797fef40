"""Training loops of the tests of `equipoise.watch`: run as a script, one process a rank, as a user would.

Usage: watched.py SCENARIO OUT; ranks are told by torchrun, or started by Lightning.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import equipoise
from equipoise.bench.watching import user_loop

NUM_FEATURES, NUM_CLASSES = 16, 4
SLEPT_S = 0.02
BATCH = 8
# When forward passes that train began, and how long evaluation took after so many of them.
BEGAN_S: list[float] = []
EVALUATED_S: list[tuple[int, float]] = []


def model():
    """A small model, the same on every rank."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(NUM_FEATURES, 32), nn.ReLU(), nn.Linear(32, NUM_CLASSES))


def evaluate():
    """Take a second that belongs to no step."""
    began_s = time.perf_counter()
    time.sleep(1.0)
    EVALUATED_S.append((len(BEGAN_S), time.perf_counter() - began_s))


def keep(out, rank):
    """Write what this rank's own clock says."""
    own = {"began_s": BEGAN_S, "evaluated_s": EVALUATED_S}
    Path(out, f"own-{rank}.json").write_text(json.dumps(own))


class Data(torch.utils.data.Dataset):
    """Random samples; each takes its time to load."""

    def __init__(self, num_samples, slept_s=0.0, *, named=False):
        drawing = torch.Generator().manual_seed(1)
        self.x = torch.randn(num_samples, NUM_FEATURES, generator=drawing)
        self.y = torch.randint(0, NUM_CLASSES, (num_samples,), generator=drawing)
        self.slept_s, self.named = slept_s, named

    def __len__(self):
        return len(self.x)

    def __getitem__(self, at):
        time.sleep(self.slept_s / BATCH)
        if self.named:
            return {"features": self.x[at], "labels": self.y[at]}
        return self.x[at], self.y[at]


def plain(out, *, dies_at=None):
    """A loop over DistributedDataParallel; where it dies, rank 1 is killed, and rank 0 finds out."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    ddp = nn.parallel.DistributedDataParallel(model())
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(Data(BATCH * 48, SLEPT_S), batch_size=BATCH)
    with equipoise.watch(ddp, out=out, name="small") as seen:
        for number, (x, y) in enumerate(seen.batches(loader)):
            if rank and number == dies_at:
                os.kill(os.getpid(), signal.SIGKILL)
            BEGAN_S.append(time.perf_counter())
            loss = nn.functional.cross_entropy(ddp(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    Path(out, f"summary-{rank}").write_text(seen.summary())
    keep(out, rank)
    dist.destroy_process_group()


def dying(out):
    """A loop whose rank 1 is killed in the middle, after most of it was put on disk."""
    user_loop._FLUSH_S = 0.1
    plain(out, dies_at=40)


def lightning(out):
    """Lightning's Trainer with ddp on two processes that it starts itself; evaluation in between."""
    import lightning  # noqa: PLC0415 - not always there

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = model()

        def training_step(self, batch):
            BEGAN_S.append(time.perf_counter())
            x, y = batch
            time.sleep(SLEPT_S)
            return nn.functional.cross_entropy(self.model(x), y)

        def validation_step(self, batch):
            evaluate()
            self.model(batch[0])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    callback = equipoise.LightningWatch(out)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_steps=44,
        val_check_interval=22,
        limit_val_batches=1,
        check_val_every_n_epoch=None,
        callbacks=[callback],
        default_root_dir=out,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loaders = [torch.utils.data.DataLoader(Data(BATCH * 44 * 2), batch_size=BATCH) for _ in range(2)]
    trainer.fit(Module(), *loaders)
    Path(out, f"summary-{trainer.global_rank}").write_text(callback.watch.summary())
    keep(out, trainer.global_rank)


def trainer(out):
    """Hugging Face's Trainer under torchrun, two batches to an update, evaluation in between."""
    import transformers  # noqa: PLC0415 - not always there

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model()

        def forward(self, features, labels):
            if self.training:
                BEGAN_S.append(time.perf_counter())
                time.sleep(SLEPT_S / 2)
            else:
                evaluate()
            logits = self.model(features)
            return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}

    settings = transformers.TrainingArguments(
        output_dir=out,
        use_cpu=True,
        per_device_train_batch_size=BATCH // 2,
        per_device_eval_batch_size=BATCH,
        gradient_accumulation_steps=2,
        max_steps=44,
        eval_strategy="steps",
        eval_steps=22,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    callback = equipoise.TrainerWatch(out)
    subject = transformers.Trainer(
        model=Model(),
        args=settings,
        train_dataset=Data(BATCH * 44 * 2, named=True),
        eval_dataset=Data(BATCH * 2, named=True),
        callbacks=[callback],
    )
    subject.train()
    Path(out, f"summary-{os.environ['RANK']}").write_text(callback.watch.summary())
    keep(out, os.environ["RANK"])


if __name__ == "__main__":
    torch.set_num_threads(1)
    loops = {"plain": plain, "dying": dying, "lightning": lightning, "trainer": trainer}
    loops[sys.argv[1]](sys.argv[2])
