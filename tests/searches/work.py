"""Work for the tests of the executors: functions that workers can import, some of them deadly."""

import os
import signal
import time
from pathlib import Path

from searches.pricing.shard_prices import ShardAnswer, search_shard
from searches.space.shards import Shard


def square(x: int) -> int:
    time.sleep(0.002 * (5 - x % 5))  # later shards finish first
    return x * x


def fails_at_three(x: int) -> int:
    if x == 3:
        raise ValueError("shard 3 is broken")
    return x


def dies_once(work: tuple[str, int, str]) -> int:
    """Return x, after killing the worker that first came upon a marked x."""
    folder, x, how = work
    mark = Path(folder) / str(x)
    if how and not mark.exists():
        # A pool that breaks kills its other workers, perhaps between a file's creation and text.
        whole = mark.with_suffix(f".{os.getpid()}")
        whole.write_text(str(os.getpid()))
        whole.rename(mark)
        if how == "exit":
            os._exit(1)
        os.kill(os.getpid(), signal.SIGKILL)
    return x


def always_dies(x: int) -> int:
    if x == 1:
        os._exit(1)
    return x


def process_id(x: int) -> int:
    time.sleep(0.05)
    return os.getpid()


def search_shard_dying_once(shard: Shard) -> ShardAnswer:
    """Search a shard; the first worker that is asked to is killed in place of an answer.

    What was killed is said in the folder `DIES_ONCE_IN` of the environment, which workers inherit.
    """
    mark = Path(os.environ["DIES_ONCE_IN"]) / "killed"
    if not mark.exists():
        mark.write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGKILL)
    return search_shard(shard)
