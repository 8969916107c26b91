"""What a launch costs at a thousand workers and ten thousand packs, on a store that takes 20 ms a request.

    python benchmarks/thousand_workers.py [--workers 1000] [--packs 10000] [--per-node 8] [--pack-s 120] [--jobs]

The workers are simulated (tests/support/thousand_workers.py says how): time is invented, a discrete-event clock; the driver,
the store's client, the claims, records, beats and commits are the real ones, and the driver really waits for its requests.
Counted is every request of the driver and of the workers; those of a compaction beside the launch are not among them.
"""

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.support.thousand_workers import simulate


def main() -> None:
    """Run the simulation and print what it cost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--packs", type=int, nargs="+", default=[2500, 10_000])
    parser.add_argument("--per-node", type=int, default=8)
    parser.add_argument("--pack-s", type=float, default=120.0)
    parser.add_argument("--delay-ms", type=float, default=20.0)
    parser.add_argument(
        "--jobs", action="store_true", help="as jobs of a scheduler, whose ends only stand in the store"
    )
    given = parser.parse_args()
    for packs in given.packs:
        with tempfile.TemporaryDirectory() as folder:
            result = simulate(
                Path(folder),
                workers=given.workers,
                packs=packs,
                per_node=given.per_node,
                pack_s=given.pack_s,
                delay_s=given.delay_ms / 1000,
                as_jobs=given.jobs,
            )
        looks = result.looks
        print(f"{packs} packs, {given.workers} workers, {result.took_s:.0f} s of invented time")
        print(f"  requests per committed pack {result.per_pack:.2f}: {result.requests}")
        print(f"  longest look {looks.longest_s:.2f} s; driver's share of one core {result.cpu_share:.1%}")
        for (who, what), number in sorted(result.kinds.items()):
            print(f"    {who:8} {what:8} {number / packs:7.3f} a pack")


if __name__ == "__main__":
    main()
