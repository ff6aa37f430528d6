"""Steps a second of a plain PyTorch loop on a slow link: `launch` beside TorchDistributor with DDP.

    sudo python benchmarks/kept_trainer.py [--rate 100mbit] [--small]

The same net, batch and loop in two tasks of one local Spark, in a network namespace whose loopback
carries no more than the rate (Linux, `unshare`, `tc`, root). Both take turns, `--tries` times. Ours
agrees every 50 steps over TLS; its seconds end after a round. DDP sums by gloo, in clear.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

from machine import begin, cannot

WORKERS, WIDTH, BATCH, WARM = 2, 512, 32, 2


def loop(out: str, steps: int, wrap, stepped) -> None:
    """Trains; notes steps a second after the first ones."""
    import torch

    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(WIDTH, 2 * WIDTH), torch.nn.ReLU(), torch.nn.Linear(2 * WIDTH, 10)
    )
    net, step = wrap(net), 0
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    x, y = torch.randn(BATCH, WIDTH), torch.randint(0, 10, (BATCH,))
    for step in range(steps + WARM):
        if step == WARM:
            began = perf_counter()
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
        stepped()
    seconds = perf_counter() - began
    result = {
        "steps_per_second": steps / seconds,
        "numbers": sum(p.numel() for p in net.parameters()),
    }
    Path(tempfile.mkstemp(dir=out)[1]).write_text(json.dumps(result))


def by_ddp(out: str, steps: int) -> None:
    """What TorchDistributor runs."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    loop(out, steps, DistributedDataParallel, lambda: None)
    dist.destroy_process_group()


def ours(out: str, steps: int):
    """Returns what `launch` runs."""

    def train() -> None:
        import photinus

        agreements = []

        def wrap(net):
            agreements.append(photinus.agree(net, photinus.averaging(every=photinus.Steps(50))))
            return net

        # warm steps and measured ones end with a round
        loop(out, steps, wrap, lambda: agreements[0].step())

    return train


def measured(spark, steps: int, ddp_steps: int) -> dict[str, float]:
    """Returns steps a second of each, the slowest worker's."""
    from pyspark.ml.torch.distributor import TorchDistributor

    import photinus

    rates = {}
    for name in ("launch", "ddp"):
        with tempfile.TemporaryDirectory() as out:
            if name == "ddp":
                shared = TorchDistributor(WORKERS, local_mode=False, use_gpu=False)
                shared.run(by_ddp, out, ddp_steps)
            else:
                photinus.launch(ours(out, steps - WARM), workers=WORKERS, spark=spark)
            results = [json.loads(path.read_text()) for path in Path(out).iterdir()]
        rates[name] = min(one["steps_per_second"] for one in results)
        rates["numbers"] = results[0]["numbers"]
    return rates


def inside(options: argparse.Namespace) -> None:
    """In the namespace: prints a line a try, and the median of the ratios."""
    from pyspark import cloudpickle

    import photinus

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    spark = photinus.spark_session(WORKERS)
    ratios = []
    for _ in range(options.tries):
        rates = measured(spark, options.steps, options.ddp_steps)
        ratios.append(rates["launch"] / rates["ddp"])
        print(
            f"{options.rate}, {rates['numbers']:,} numbers, {WORKERS} workers: launch "
            f"{rates['launch']:.1f} steps/s, TorchDistributor + DDP {rates['ddp']:.2f} steps/s, "
            f"{ratios[-1]:.1f} times",
            flush=True,
        )
    print(f"median of {options.tries}: {statistics.median(ratios):.1f} times")
    spark.stop()


def main() -> None:
    """Goes into a namespace of its own, and measures there."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", default="100mbit")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--ddp-steps", type=int, default=20)
    parser.add_argument("--tries", type=int, default=3)
    options = parser.parse_args()
    if os.environ.get("PHOTINUS_SHAPED") == "inside":
        inside(options)
        return
    if not all(shutil.which(tool) for tool in ("unshare", "tc", "ip")):
        cannot("a shaped link needs Linux with unshare, ip and tc")
    if subprocess.run(["unshare", "-n", "true"], check=False, capture_output=True).returncode:
        cannot("a shaped link needs root")
    script = f"ip link set lo up && tc qdisc add dev lo root tbf rate {options.rate} "
    script += 'burst 256k latency 2s && exec "$@"'
    again = [sys.executable, __file__, *sys.argv[1:]]
    environment = {
        **os.environ,
        "PHOTINUS_SHAPED": "inside",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "OMP_NUM_THREADS": "1",
    }
    command = ["unshare", "-n", "bash", "-c", script, "shaped", *again]
    sys.exit(subprocess.run(command, env=environment, check=False).returncode)


if __name__ == "__main__":
    begin("--steps", "50", "--ddp-steps", "2", "--tries", "1")
    main()
